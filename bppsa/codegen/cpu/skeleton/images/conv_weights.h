// Gradients of a convolution's weight, at its kept entries, and of its bias.
namespace {

// The weight's memory, row by row: the n-th kept place, and which entry it is of.
struct Walk {
  const int32_t* places;
  const int32_t* rank;  // null: in the order of the entries
  INLINE int64_t entry(int64_t n) const { return rank == nullptr ? n : rank[n]; }
};

// The gradients of a convolution's parameters. bias may be null.
struct Gradients {
  real* weight;  // [rows, row_size], or, where `compact`, one for each place of the walk
  Walk walk;
  int64_t row_size;
  real* bias;
  bool compact;
};

// A gradient that is larger than a core's cache is written past it: it would push out what is read next.
constexpr int64_t LARGE = 1 << 20;

// Some rows whose sums stay in the cache while tiles pass by: so many entries, or a single row.
constexpr int64_t MOST_ENTRIES = 4096, MOST_ROWS = 256;

struct Workspace {
  V* sums;    // of these rows' entries
  V* biases;  // of the rows themselves
  real* row;
  static int64_t entries(int64_t row_size) { return ceil_div(std::max(MOST_ENTRIES, row_size), L) * L; }
  static int64_t vectors(int64_t row_size) { return entries(row_size) + MOST_ROWS + ceil_div(row_size, L) + 1; }
  Workspace(V* all, int part, int64_t row_size) {
    sums = all + part * vectors(row_size), biases = sums + entries(row_size), row = (real*)(biases + MOST_ROWS);
  }
};

// Those of a tile's pixels, from where its outputs begin; returns their sum.
template <class S, class Kind, int PLANES>
INLINE V cotangents(const Image& target, int64_t begin, V (&pixels)[PLANES][Kind::HEIGHT * Kind::WIDTH]) {
  V together[2] = {};
  UNROLL for (int p = 0; p < PLANES; ++p)
    UNROLL for (int i = 0; i < OUTPUTS<S, Kind>; ++i) {
      const int64_t at = begin + p * target.block + Kind::at(i);
      const V g = load<V>(target.data + at);
      together[i & 1] += g;
      if constexpr (S::POOL == 1) {
        pixels[p][i] = g;
      } else {
        const Int<V> winner = load_places(target.winners + at);
        UNROLL for (int k = 0; k < S::POOL * S::POOL; ++k)
          pixels[p][pixel<S, Kind>(i, k)] = winner == (integer)k ? g : V{};
      }
    }
  return together[0] + together[1];
}

// Each entry of rows `from` to `to`, and each of these rows' biases: the target's gradient times what it reads, summed
// over pixels and samples, lane by lane.
template <class S>
INLINE void multiply(const Rows& rows, int64_t from, int64_t to, const Image& source, const Image& target,
                     int64_t blocks, const Workspace& work) {
  const int64_t begin = rows.begin(from), end = rows.begin(to);
  std::fill(work.biases, work.biases + (to - from), V{});
  const auto visit = [&](auto planes, auto kind, auto adds, int64_t block, const Place& place) {
    using Kind = decltype(kind);
    Products<planes, Kind::HEIGHT * Kind::WIDTH, adds> all;
    all.offsets = rows.offsets, all.block = source.block, all.sums = work.sums, all.begin = begin;
    all.source = source.data + block * source.block + place.source;
    for_chunks(rows, {from, to}, [&](int64_t row, int64_t chunk) {
      const int64_t at = block * target.block + row * target.plane + place.target;
      const V together = cotangents<S, Kind, planes>(target, at, all.gradient);
      if (chunk == 0) work.biases[row - from] += together;
      Kind::spans(all, rows.runs(row, chunk));
    });
  };
  if constexpr (!S::WHOLE) std::fill(work.sums, work.sums + (end - begin), V{});
  for_blocks<S::PLANES>({0, blocks}, [&](auto planes, int64_t block) {
    for (int64_t t = 0; t < S::TILES; ++t) {
      S::tile(t, [&](auto kind, const Place& place) {
        if (S::WHOLE && block == 0) visit(planes, kind, std::bool_constant<!S::WHOLE>(), block, place);
        else visit(planes, kind, std::true_type(), block, place);
      });
    }
  });
}

// A row of the weight's gradient from those of its entries, totals[rows.begin(row)] and what follows. `room`: null, or of
// one row, from which it is written past the caches.
INLINE void spread(const Rows& rows, int64_t row, const Gradients& to, const real* totals, real* room) {
  real* const target = to.weight + row * to.row_size;
  real* const written = room == nullptr ? target : room;
  std::memset(written, 0, to.row_size * sizeof(real));
  for (int64_t n = rows.begin(row); n < rows.begin(row + 1); ++n)
    written[to.walk.places[n] - row * to.row_size] = totals[to.walk.entry(n)];
  if (room != nullptr) stream(room, target, to.row_size);
}

// All gradients; zero where there is no entry.
template <class S>
void products(const Rows& rows, const Image& source, const Image& target, int64_t blocks, int threads,
              const Gradients& to, V* workspace) {
  const int64_t fitting = S::TILES > 1 || rows.chunks > 1 ? MOST_ENTRIES : MOST_ENTRIES / L;
  const bool large = !to.compact && rows.rows * to.row_size * (int64_t)sizeof(real) > LARGE;
  in_parallel(threads, [&](int part, int parts) {
    const Range own = rows.share(part, parts);
    const Workspace work(workspace, part, to.row_size);
    for (int64_t first = own.begin, next; first < own.end; first = next) {
      const int64_t begin = rows.begin(first), most = std::min(own.end, first + MOST_ROWS);
      for (next = first + 1; next < most && rows.begin(next + 1) - begin <= fitting;) ++next;
      multiply<S>(rows, first, next, source, target, blocks, work);
      for (int64_t n = 0; n < rows.begin(next) - begin; n += L) work.sums[n / L] = lane_sums(work.sums + n);
      const real* totals = (const real*)work.sums - begin;
      if (to.compact)
        for (int64_t n = begin; n < rows.begin(next); ++n) to.weight[n] = totals[to.walk.entry(n)];
      for (int64_t row = first; row < next; ++row) {
        if (!to.compact) spread(rows, row, to, totals, large ? work.row : nullptr);
        if (to.bias != nullptr) to.bias[row] = sum(work.biases[row - first]);
      }
    }
    if (large) FENCE();
  });
}

}  // namespace
