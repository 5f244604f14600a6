// Sparse convolution: the registers of one tile of pixels, and the loops over tiles, channels and blocks of samples.
// What was printed for a geometry knows its tiles: their places, and which taps reach which of their pixels.
namespace {

// A sparse matrix: a row for each channel of the target, in it a run of entries for each tap; or, for each of some chunks
// of the source's channels, a run for each tap.
struct Rows {
  const int32_t* at;       // where each run begins, [rows * chunks * taps + 1]
  const int32_t* offsets;  // of the source pixel that each entry reads, in reals from the source pixel of a tile
  const real* values;
  int64_t rows, chunks, taps;

  INLINE const int32_t* runs(int64_t row, int64_t chunk = 0) const { return at + (row * chunks + chunk) * taps; }
  // What a chunk begins with, a while before it is read: a machine fetches by itself only what follows what it has read.
  INLINE void fetch(int64_t row, int64_t chunk) const {
    const int64_t from = *runs(row, chunk);
    UNROLL for (int64_t n = 0; n < 3; ++n) {
      __builtin_prefetch(offsets + from + n * LINE);
      if (values != nullptr) __builtin_prefetch(values + from + n * LINE);
    }
  }
  INLINE int64_t begin(int64_t row) const { return runs(row)[0]; }
  // Whole rows with about a part-th of all entries.
  int64_t first(int part, int parts) const {
    const int64_t wanted = begin(rows) * part / parts;
    int64_t low = 0, high = rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (begin(middle) < wanted) low = middle + 1;
      else high = middle;
    }
    return part == parts ? rows : low;
  }
  Range share(int part, int parts) const { return {first(part, parts), first(part + 1, parts)}; }
};

// An image in the blocked layout: reals of one channel's plane, and between blocks. winners: of one that is pooled,
// which pixel of its square each of its numbers was; null where nobody asks.
struct Image {
  real* data;
  int64_t plane, block;
  Byte* winners;
};

// Where a tile begins in either image.
struct Place {
  int64_t source, target;
};

// A sweep S writes one output for each square of S::POOL x S::POOL pixels of a tile, most often for each pixel.
template <class S, class Kind>
constexpr int OUTPUTS = Kind::HEIGHT * Kind::WIDTH / (S::POOL * S::POOL);

// In the tile, pixel k of the square of output i.
template <class S, class Kind>
constexpr int pixel(int i, int k) {
  const int across = Kind::WIDTH / S::POOL, y = i / across * S::POOL + k / S::POOL, x = i % across * S::POOL + k % S::POOL;
  return y * Kind::WIDTH + x;
}

// Sums over entries for each pixel of a tile, in PLANES blocks. Few pixels have several chains: additions that depend
// on each other would wait.
template <int PLANES, int PIXELS>
struct Sums {
  static constexpr int CHAINS = PLANES * PIXELS >= 8 ? 1 : PLANES * PIXELS >= 4 ? 2 : 4;
  V sums[CHAINS][PLANES][PIXELS];
  const int32_t* offsets;
  const real* values;
  const real* source;
  int64_t block;

  INLINE void clear() {
    UNROLL for (int c = 0; c < CHAINS; ++c)
      UNROLL for (int p = 0; p < PLANES; ++p)
        UNROLL for (int i = 0; i < PIXELS; ++i) sums[c][p][i] = V{};
  }
  INLINE void resume(const V* partial) {
    clear();
    UNROLL for (int p = 0; p < PLANES; ++p)
      UNROLL for (int i = 0; i < PIXELS; ++i) sums[0][p][i] = partial[p * PIXELS + i];
  }
  INLINE void put_aside(V* partial) const {
    UNROLL for (int p = 0; p < PLANES; ++p)
      UNROLL for (int i = 0; i < PIXELS; ++i) partial[p * PIXELS + i] = total(p, i);
  }
  // Entries `from` to `to` reach rows Y0 to Y1 and columns X0 to X1 of a tile WIDTH wide, whose neighbours' source
  // pixels are ROW and STEP reals apart.
  template <int WIDTH, int Y0, int Y1, int X0, int X1, int64_t ROW, int64_t STEP>
  INLINE void span(int64_t from, int64_t to) {
    int64_t n = from;
    for (; to - n >= CHAINS; n += CHAINS)
      UNROLL for (int c = 0; c < CHAINS; ++c) add<WIDTH, Y0, Y1, X0, X1, ROW, STEP>(c, n + c);
    if constexpr (CHAINS > 1)
      for (; n < to; ++n) add<WIDTH, Y0, Y1, X0, X1, ROW, STEP>(0, n);
  }
  INLINE V total(int p, int i) const {
    V sum = sums[0][p][i];
    UNROLL for (int c = 1; c < CHAINS; ++c) sum += sums[c][p][i];
    return sum;
  }

 private:
  template <int WIDTH, int Y0, int Y1, int X0, int X1, int64_t ROW, int64_t STEP>
  INLINE void add(int c, int64_t n) {
    const V value = splat<V>(values[n]);
    const real* pixel = source + offsets[n];
    UNROLL for (int p = 0; p < PLANES; ++p)
      UNROLL for (int y = Y0; y < Y1; ++y)
        UNROLL for (int x = X0; x < X1; ++x)
          sums[c][p][y * WIDTH + x] += value * load<V>(pixel + p * block + y * ROW + x * STEP);
  }
};

// The output's gradient on a tile, multiplied with what each entry reads: one vector of sums an entry. ADDS: to those that
// are there.
template <int PLANES, int PIXELS, bool ADDS>
struct Products {
  static constexpr int CHAINS = PLANES * PIXELS > 1 ? 2 : 1;
  V gradient[PLANES][PIXELS];
  const int32_t* offsets;
  const real* source;
  int64_t block;
  V* sums;  // of the chunk's entries, which begin at `begin`
  int64_t begin;

  template <int WIDTH, int Y0, int Y1, int X0, int X1, int64_t ROW, int64_t STEP>
  INLINE void span(int64_t from, int64_t to) {
    for (int64_t n = from; n < to; ++n) {
      const real* pixel = source + offsets[n];
      V chains[CHAINS] = {};
      if constexpr (ADDS) chains[0] = sums[n - begin];
      UNROLL for (int p = 0; p < PLANES; ++p)
        UNROLL for (int y = Y0; y < Y1; ++y)
          UNROLL for (int x = X0; x < X1; ++x)
            chains[(p + y + x) % CHAINS] += gradient[p][y * WIDTH + x] * load<V>(pixel + p * block + y * ROW + x * STEP);
      sums[n - begin] = CHAINS > 1 ? chains[0] + chains[CHAINS - 1] : chains[0];
    }
  }
};

// Calls f(std::integral_constant<int, PLANES>, block) for all blocks: MOST at once, then half as many, and so on.
template <int MOST, class F>
INLINE void for_blocks(Range blocks, F f) {
  int64_t b = blocks.begin;
  for (; blocks.end - b >= MOST; b += MOST) f(std::integral_constant<int, MOST>(), b);
  if constexpr (MOST > 1) for_blocks<MOST / 2>({b, blocks.end}, f);
}

// So many rows go through the chunks together: a chunk of the source's channels, and the rows' sums, stay in the nearest
// cache.
constexpr int64_t TOGETHER = 16;

// f(row, chunk) for all of both
template <class F>
INLINE void for_chunks(const Rows& rows, Range range, F f) {
  const int64_t step = rows.chunks > 1 ? TOGETHER : range.end - range.begin;
  for (int64_t from = range.begin; from < range.end; from += step)
    for (int64_t chunk = 0; chunk < rows.chunks; ++chunk)
      for (int64_t row = from; row < std::min(from + step, range.end); ++row) {
        if (chunk + 1 < rows.chunks) rows.fetch(row, chunk + 1);
        f(row, chunk);
      }
}

// Rows of the target on one tile of PLANES blocks, row by row: write(row, sums) gets them. By value: what is written
// could otherwise change what is read. One loop for one chunk and for several: a second would be a tile's code once more,
// which the compiler takes seconds for.
template <class Kind, int PLANES, class Write>
INLINE void rows_of_tile(const Rows rows, const Range range, const real* source, const int64_t block, Write write) {
  constexpr int PIXELS = Kind::HEIGHT * Kind::WIDTH;
  Sums<PLANES, PIXELS> sums;
  sums.offsets = rows.offsets, sums.values = rows.values, sums.source = source, sums.block = block;
  V partial[TOGETHER][PLANES * PIXELS];
  const int64_t apart = rows.chunks * rows.taps, last = rows.chunks - 1;
  const int64_t together = last > 0 ? TOGETHER : range.end - range.begin;
  for (int64_t from = range.begin; from < range.end; from += together) {
    const int64_t count = std::min(together, range.end - from);
    for (int64_t chunk = 0; chunk <= last; ++chunk) {
      const int32_t* runs = rows.runs(from, chunk);
      for (int64_t i = 0; i < count; ++i, runs += apart) {
        if (chunk == 0) sums.clear();
        else sums.resume(partial[i]);
        if (chunk < last) rows.fetch(from + i, chunk + 1);
        else if (from + i + together < range.end) rows.fetch(from + i + together, 0);
        Kind::spans(sums, runs);
        if (chunk < last) sums.put_aside(partial[i]);
        else write(from + i, sums);
      }
    }
  }
}

// target = rows * source, through the epilogue. Threads share tiles and blocks, or, where there are few of these, rows.
template <class S, class Epilogue>
void sweep(const Rows& rows, const Image& source, const Image& target, int64_t blocks, int threads, Epilogue epilogue) {
  const int64_t groups = ceil_div(blocks, S::PLANES), units = groups * S::TILES;
  const bool by_rows = units < 4 * threads && units % threads != 0;
  in_parallel(threads, [&](int part, int parts) {
    const Range own = by_rows ? Range{0, units} : share(units, part, parts);
    const Range channels = by_rows ? rows.share(part, parts) : Range{0, rows.rows};
    for (int64_t unit = own.begin; unit < own.end; ++unit) {
      const int64_t first = unit / S::TILES * S::PLANES;
      for_blocks<S::PLANES>({first, std::min(first + S::PLANES, blocks)}, [&](auto planes, int64_t block) {
        S::tile(unit % S::TILES, [&](auto kind, const Place& place) {
          using Kind = decltype(kind);
          const int64_t base = block * target.block + place.target;
          rows_of_tile<Kind, planes>(
              rows, channels, source.data + block * source.block + place.source, source.block,
              [=, to = target](int64_t row, const auto& sums) {
                epilogue(row, [&](auto finish) {
                  UNROLL for (int p = 0; p < planes; ++p)
                    UNROLL for (int i = 0; i < OUTPUTS<S, Kind>; ++i) {
                      const int64_t at = base + row * to.plane + p * to.block + Kind::at(i);
                      Maximum best;
                      UNROLL for (int k = 0; k < S::POOL * S::POOL; ++k)
                        best.see(finish(sums.total(p, pixel<S, Kind>(i, k)), at), k);
                      store(to.data + at, best.value);
                      if (S::POOL > 1 && to.winners != nullptr) store_places(to.winners + at, best.place);
                    }
                });
              });
        });
      });
    }
  });
}

}  // namespace
