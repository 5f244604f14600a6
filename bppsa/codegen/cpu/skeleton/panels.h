// How products over rows read their operands: the caller's description, columns of rows, panels of them for `Gemm`.
namespace {

// A sum of reals has so many terms before it is added to others, and so many of these before they go into a double.
constexpr int64_t BLOCK = 64, DEPTH = 128, FLUSH_BLOCKS = 16;
constexpr int WHOLE = (WIDE ? 64 : 32) / sizeof(real), HALF = 32 / sizeof(real);  // lanes
constexpr int MOST_VECTORS = WIDE ? 5 : 3;                                       // of a panel

// Copies rows [rows, width] to rows that are `pitch` apart.
INLINE void copy_rows(const real* from, int64_t stride, real* to, int64_t pitch, int64_t rows, int64_t width) {
  using V = Vec<WHOLE>;
  const int64_t whole = width - width % WHOLE;
  const Tail<V> tail(width % WHOLE);
  for (int64_t r = 0; r < rows; ++r, from += stride, to += pitch) {
    for (int64_t j = 0; j < whole; j += WHOLE) store(to + j, load<V>(from + j));
    if (whole < width) tail.store(to + whole, tail.load(from + whole));
  }
}

using Multiply = void (*)(const real* a, int64_t stride, const real* panel, int64_t depth, real* out, int64_t rows,
                          int64_t k_stride);

// For 1, 1 + STEP, ... vectors of L lanes
template <int L, int STEP, int... N>
constexpr auto tiles(std::integer_sequence<int, N...>) {
  return std::array<Multiply, sizeof...(N)>{Gemm<Vec<L>, N * STEP + 1, true>::run...};
}
template <int L, int STEP>
constexpr auto TILES = tiles<L, STEP>(std::make_integer_sequence<int, (MOST_VECTORS - 1) / STEP + 1>());

// How `width` columns become panels of vectors.
struct Panels {
  int64_t width, count, vectors, lanes;
  double cost;  // for each row and k, lanes that do nothing included

  explicit Panels(int64_t width) : width(width), cost(std::numeric_limits<double>::infinity()) {
    for (int64_t l = WHOLE; l >= HALF; l /= 2) {
      for (int64_t each = MOST_VECTORS; each > 0; each -= l == WHOLE ? 1 : 2) {  // two halves are a whole
        const int64_t panels = ceil_div(width, each * l);
        const double expected = panels * each * l * (1 + 0.5 / max_rows(each));
        if (expected < cost) cost = expected, count = panels, vectors = each, lanes = l;
      }
    }
  }
  int64_t pitch() const { return vectors * lanes; }
  int64_t size(int64_t panel) const { return std::min(pitch(), width - panel * pitch()); }

  Multiply multiply() const {
    return lanes == WHOLE ? TILES<WHOLE, 1>[vectors - 1] : TILES<HALF, 2>[(vectors - 1) / 2];
  }
};

// The caller's description, read word by word.
struct Words {
  const int64_t* at;
  int64_t next() { return *at++; }
  real* pointer() { return (real*)next(); }
  const int64_t* skip(int64_t count) { return std::exchange(at, at + count); }
};

// Columns of rows in memory, in one or more stretches.
struct Columns {
  const real* at;
  int64_t stride, width, count;
  const int64_t* runs;  // (column, width) each

  explicit Columns(Words& words)
      : at(words.pointer()), stride(words.next()), width(0), count(words.next()), runs(words.skip(2 * count)) {
    for (int64_t i = 0; i < count; ++i) width += size(i);
  }
  int64_t size(int64_t run) const { return runs[2 * run + 1]; }
  const real* row(int64_t r, int64_t run) const { return at + r * stride + runs[2 * run]; }

  bool operator==(const Columns& other) const {
    return at == other.at && stride == other.stride && count == other.count &&
           std::equal(runs, runs + 2 * count, other.runs);
  }

  // Into panels [BLOCK, pitch].
  void pack(int64_t first, int64_t rows, const Panels& panels, real* to) const {
    int64_t column = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t done = 0; done < size(i);) {
        const int64_t panel = column / panels.pitch(), in_panel = column % panels.pitch();
        const int64_t n = std::min(size(i) - done, panels.pitch() - in_panel);
        real* start = to + panel * BLOCK * panels.pitch() + in_panel;
        copy_rows(row(first, i) + done, stride, start, panels.pitch(), rows, n);
        done += n, column += n;
      }
    }
  }
};

}  // namespace
