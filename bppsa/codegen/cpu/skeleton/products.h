// Products over the same rows, block by block while these are in the cache. An outer product sums over all rows,
// out[i, j] = sum over r of a[r, i] * b[r, j]; a projection has rows as its result, out[r, :] = a[r, :] @ weight.
#include <vector>

namespace {

// Reading what another thread has summed takes as long as reading so many operands.
constexpr int64_t READS_PER_SUM = 8;

struct Range {
  int64_t begin, end;
};

// Threads share the rows and add up what each has; or, as that is dear for wide products of few rows, the columns of a.
struct Team {
  int part, parts;
  bool by_columns;
  Range share(int64_t n) const { return {n * part / parts, n * (part + 1) / parts}; }
  Range columns(int64_t n) const { return by_columns ? share(n) : Range{0, n}; }
  Range blocks(int64_t n) const { return by_columns ? Range{0, n} : share(n); }
};

// out[i, j] = the sum over rows of a[r, i] * b[r, j]; a's and b's columns may change places, to fill the lanes better.
struct Outer {
  Columns a, b;  // b's columns are the lanes
  real* out;
  int64_t a_step, b_step;  // in out
  Panels panels;
  bool packed;  // by the product before
  Multiply multiply;
  real *block, *sums;  // of each thread: [panels, BLOCK, pitch], [panels, a's width, pitch]
  double* totals;      // as sums, which are flushed into them; null where they need not be

  explicit Outer(Words& words)
      : a(words), b(words), out(words.pointer()), a_step(words.next()), b_step(words.next()), panels(b.width) {
    const Panels other(a.width);
    const double here = panels.cost * a.width, there = other.cost * b.width;
    if (there < here || (there == here && a_step == 1)) {
      std::swap(a, b), std::swap(a_step, b_step);
      panels = other;
    }
    multiply = panels.multiply();
  }
  int64_t block_size() const { return panels.count * BLOCK * panels.pitch(); }
  int64_t sums_size() const { return panels.count * a.width * panels.pitch(); }

  void place(Arena& arena, int threads, bool flushes, const Outer* before) {
    packed = before != nullptr && before->b == b;
    block = packed ? before->block : arena.take<real>(threads * block_size());
    sums = arena.take<real>(threads * padded(sums_size()));
    totals = flushes ? arena.take<double>(threads * padded(sums_size())) : nullptr;
  }
  void clear(const Team& team) const {
    if (!packed) std::memset(block + team.part * block_size(), 0, block_size() * sizeof(real));
    for_panels(team, [&](int64_t i, int64_t n) {
      std::memset(sums + i, 0, n * sizeof(real));
      if (totals != nullptr) std::memset(totals + i, 0, n * sizeof(double));
    });
  }
  void add(const Team& team, int64_t first, int64_t rows) const {
    const Range columns = team.columns(a.width);
    real* panel = block + team.part * block_size();
    if (!packed) b.pack(first, rows, panels, panel);
    real* to = sums + team.part * padded(sums_size());
    for (int64_t p = 0; p < panels.count; ++p, panel += BLOCK * panels.pitch()) {
      for (int64_t i = 0, start = 0; i < a.count; to += a.size(i) * panels.pitch(), start += a.size(i), ++i) {
        const int64_t skip = std::max(columns.begin - start, int64_t(0));
        const int64_t n = std::min(columns.end - start, a.size(i)) - skip;
        if (n > 0) multiply(a.row(first, i) + skip, 1, panel, rows, to + skip * panels.pitch(), n, a.stride);
      }
    }
  }
  void flush(const Team& team) const {
    if (totals == nullptr) return;
    for_panels(team, [&](int64_t i, int64_t n) {
      for (const int64_t end = i + n; i < end; ++i) totals[i] += sums[i], sums[i] = 0;
    });
  }
  void reduce(const Team& team) const { totals != nullptr ? reduce(totals, team) : reduce(sums, team); }

 private:
  // What of the sums is this thread's: so many from there, for each panel.
  template <class F>
  INLINE void for_panels(const Team& team, F f) const {
    const Range columns = team.columns(a.width);
    const int64_t start = team.part * padded(sums_size());
    for (int64_t p = 0; p < panels.count; ++p)
      f(start + (p * a.width + columns.begin) * panels.pitch(), (columns.end - columns.begin) * panels.pitch());
  }
  // Each thread its share of a's columns, over all threads in their order.
  template <class T>
  void reduce(const T* from, const Team& team) const {
    const Range columns = team.share(a.width);
    const int64_t step = padded(sums_size());
    const T* begin = from + (team.by_columns ? team.part * step : 0);
    const T* end = begin + (team.by_columns ? 1 : team.parts) * step;
    for (int64_t p = 0; p < panels.count; ++p) {
      for (int64_t i = columns.begin; i < columns.end; ++i) {
        real* to = out + i * a_step + p * panels.pitch() * b_step;
        for (int64_t j = 0; j < panels.size(p); ++j) {
          double total = 0;
          for (const T* sum = begin; sum < end; sum += step) total += sum[(p * a.width + i) * panels.pitch() + j];
          to[j * b_step] = total;
        }
      }
    }
  }
};

// out[r, :] = the sum over pieces of a[r, columns of the piece] @ weight, which is rows of a matrix of any strides.
struct Projection {
  struct Piece {
    int64_t column, width;
    const real* weight;
    int64_t k_step, j_step;
  };
  const real* a;
  int64_t stride, count, depth;
  const Piece* pieces;
  real* out;
  int64_t out_stride;
  Panels panels;
  Multiply multiply;
  real *weights, *block;  // [panels, depth, pitch]; of each thread: [BLOCK, pitch]

  explicit Projection(Words& words)
      : a(words.pointer()),
        stride(words.next()),
        count(words.next()),
        depth(0),
        pieces((const Piece*)words.skip(count * (sizeof(Piece) / sizeof(int64_t)))),
        out(words.pointer()),
        out_stride(words.next()),
        panels(words.next()),
        multiply(panels.multiply()) {
    for (int64_t i = 0; i < count; ++i) depth += pieces[i].width;
  }
  int64_t panel_size() const { return depth * panels.pitch(); }

  void place(Arena& arena, int threads) {
    weights = arena.take<real>(panels.count * panel_size());
    block = arena.take<real>(threads * BLOCK * panels.pitch());
  }
  // Each thread its panels of the weights.
  void pack(int part, int parts) const {
    const int64_t pitch = panels.pitch();
    for (int64_t p = part; p < panels.count; p += parts) {
      real* to = weights + p * panel_size();
      for (int64_t i = 0; i < count; ++i) {
        const Piece& piece = pieces[i];
        const real* from = piece.weight + p * pitch * piece.j_step;
        for (int64_t k = 0; k < piece.width; ++k, from += piece.k_step, to += pitch) {
          for (int64_t j = 0; j < pitch; ++j) to[j] = j < panels.size(p) ? from[j * piece.j_step] : 0;
        }
      }
    }
  }
  void write(int part, int64_t first, int64_t rows) const {
    const int64_t pitch = panels.pitch();
    real* to = block + part * BLOCK * pitch;
    const real* panel = weights;
    for (int64_t p = 0; p < panels.count; ++p) {
      std::memset(to, 0, rows * pitch * sizeof(real));
      for (int64_t i = 0; i < count; ++i) {
        const real* from = a + first * stride + pieces[i].column;
        for (int64_t k = 0, n; k < pieces[i].width; k += n, panel += n * pitch) {
          n = std::min(DEPTH, pieces[i].width - k);
          multiply(from + k, stride, panel, n, to, rows, 1);
        }
      }
      copy_rows(to, pitch, out + first * out_stride + p * pitch, out_stride, rows, panels.size(p));
    }
  }
};

struct Work {
  std::vector<Outer> outers;
  std::vector<Projection> projections;
  int64_t rows, blocks;
  bool by_columns;

  Work(Words words, int64_t rows) : rows(rows), blocks(ceil_div(rows, BLOCK)) {
    const int64_t outer_count = words.next(), projection_count = words.next();
    outers.reserve(outer_count), projections.reserve(projection_count);
    int64_t sums = 0, columns = 0;
    for (int64_t i = 0; i < outer_count; ++i) {
      const Outer& outer = outers.emplace_back(words);
      sums += outer.a.width * outer.b.width, columns += outer.a.width + outer.b.width;
    }
    for (int64_t i = 0; i < projection_count; ++i) projections.emplace_back(words);
    by_columns = READS_PER_SUM * sums > columns * rows;
  }
  // Returns the bytes of workspace that it takes.
  int64_t place(void* workspace, int threads) {
    const bool flushes = (by_columns ? blocks : ceil_div(blocks, threads)) > FLUSH_BLOCKS;
    Arena arena((void*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63));
    const Outer* before = nullptr;
    for (auto& outer : outers) outer.place(arena, threads, flushes, before), before = &outer;
    for (auto& projection : projections) projection.place(arena, threads);
    return arena.used() + 64;
  }
  void prepare(const Team& team) const {
    for (const auto& outer : outers) outer.clear(team);
    for (const auto& projection : projections) projection.pack(team.part, team.parts);
  }
  void run(const Team& team) const {
    const Range own = team.share(blocks), all = team.blocks(blocks);
    for (int64_t i = all.begin; i < all.end; ++i) {
      const int64_t first = i * BLOCK, n = std::min(BLOCK, rows - first);
      for (const auto& outer : outers) outer.add(team, first, n);
      if (own.begin <= i && i < own.end) {
        for (const auto& projection : projections) projection.write(team.part, first, n);
      }
      if (i + 1 == all.end || (i + 1 - all.begin) % FLUSH_BLOCKS == 0) {
        for (const auto& outer : outers) outer.flush(team);
      }
    }
  }
  void reduce(const Team& team) const {
    for (const auto& outer : outers) outer.reduce(team);
  }
};

}  // namespace

// Bytes that `bppsa_products` needs as its workspace.
extern "C" int64_t bppsa_products_workspace(const int64_t* words, int64_t rows, int threads) {
  return Work({words}, rows).place(nullptr, threads);
}

// words: the numbers of outer products and of projections, and each as its constructor reads it.
extern "C" void bppsa_products(const int64_t* words, int64_t rows, int threads, void* workspace) {
  Work work({words}, rows);
  work.place(workspace, threads);
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const Team team{omp_get_thread_num(), omp_get_num_threads(), work.by_columns};
      work.prepare(team);
#pragma omp barrier
      work.run(team);
#pragma omp barrier
      work.reduce(team);
    }
    return;
  }
#endif
  const Team alone{0, 1, false};
  work.prepare(alone);
  work.run(alone);
  work.reduce(alone);
}
