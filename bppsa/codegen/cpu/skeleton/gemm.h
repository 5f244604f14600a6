// Dot products of one source: rows [M, K] times packed columns. A block of units takes the columns of all its dots from
// one panel [K, TV vectors]; a tile of M rows keeps its M x TV sums in registers over the whole depth. ANY: the
// source has any strides, and the sums are added to what is there.
namespace {

constexpr int REGISTERS = WIDE ? 32 : 16;

// Most rows whose sums fit, with the smaller operand held in registers and one for the other
constexpr int max_rows(int vectors) {
  int rows = 1;
  while (rows < 8 && (rows + 1) * vectors + (rows + 1 < vectors ? rows + 1 : vectors) < REGISTERS) ++rows;
  return rows;
}

// out[m, :] = sum over k of a[m, k] * panel[k, :], panel [depth, TV vectors], out [M, TV vectors]. Not inlined: among
// other code the compiler would spill sums inside the k loop. What is added to comes last, so that the sum stays short.
template <class V, int TV, int M, bool ANY>
NOINLINE void gemm_tile(const real* a, int64_t stride, [[maybe_unused]] int64_t k_stride, const real* panel,
                        int64_t depth, real* out) {
  constexpr int L = LANES<V>;
  V sums[M][TV];
  const real* row[M];
  UNROLL for (int m = 0; m < M; ++m) {
    row[m] = m == 0 ? a : row[m - 1] + stride;
    UNROLL for (int v = 0; v < TV; ++v) sums[m][v] = V{};
  }
  const int64_t step = ANY ? k_stride : 1;
  for (int64_t k = 0; k < depth; ++k, panel += TV * L) {
    if constexpr (TV <= M) {
      V w[TV];
      UNROLL for (int v = 0; v < TV; ++v) {
        w[v] = load<V>(panel + v * L);
        PIN(w[v]);
      }
      UNROLL for (int m = 0; m < M; ++m) {
        V x = splat<V>(row[m][k * step]);
        PIN(x);
        UNROLL for (int v = 0; v < TV; ++v) sums[m][v] += x * w[v];
      }
    } else {
      V x[M];
      UNROLL for (int m = 0; m < M; ++m) {
        x[m] = splat<V>(row[m][k * step]);
        PIN(x[m]);
      }
      UNROLL for (int v = 0; v < TV; ++v) {
        V w = load<V>(panel + v * L);
        PIN(w);
        UNROLL for (int m = 0; m < M; ++m) sums[m][v] += x[m] * w;
      }
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int v = 0; v < TV; ++v) {
      real* to = out + (m * TV + v) * L;
      store(to, ANY ? load<V>(to) + sums[m][v] : sums[m][v]);
    }
  }
}

// Any number of rows, split evenly over the fewest tiles.
template <class V, int TV, bool ANY = false>
struct Gemm {
  static constexpr int MOST = max_rows(TV), PITCH = TV * LANES<V>;
  using Run = void (*)(const real*, int64_t, int64_t, const real*, int64_t, real*);

  template <int... M>
  static constexpr auto table(std::integer_sequence<int, M...>) {
    return std::array<Run, MOST>{gemm_tile<V, TV, M + 1, ANY>...};
  }
  static constexpr std::array<Run, MOST> TILES = table(std::make_integer_sequence<int, MOST>());

  static INLINE void run(const real* a, int64_t stride, const real* panel, int64_t depth, real* out, int64_t rows,
                         int64_t k_stride = 1) {
    for (uint32_t tiles = (uint32_t)(rows + MOST - 1) / MOST; tiles > 0; --tiles) {
      const int64_t m = (uint32_t)(rows + tiles - 1) / tiles;
      TILES[m - 1](a, stride, k_stride, panel, depth, out);
      a += m * stride, out += m * PITCH, rows -= m;
    }
  }
};

}  // namespace
