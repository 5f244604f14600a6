// A times a B that is dense, or that fills so many entries that zeros cost less than indices: WIDTH columns of B at a
// time, whole, stay in the cache, and those of a row of C in registers.
namespace {

constexpr int TILE = 4;
constexpr int64_t WIDTH = TILE * SAMPLES;

// pack(columns [k, WIDTH], first column, how many), keep(row, first column, how many, sums [WIDTH]).
template <class Pack, class Keep>
void panels(const Csr& a, const real* values, int64_t n, int64_t m, real* workspace, int64_t size, int threads,
            Pack pack, Keep keep) {
  const int64_t count = ceil_div(m, WIDTH);
  const auto run = [&](int part) {
    real* panel = workspace + part * size;
    for (int64_t first = part * WIDTH; first < count * WIDTH; first += threads * WIDTH) {
      const int64_t width = std::min(WIDTH, m - first);
      pack(panel, first, width);
      for (int64_t i = 0; i < n; ++i) {
        Lane sums[TILE] = {};
        for (int64_t e = a.rows[i]; e < a.rows[i + 1]; ++e) {
          const real* from = panel + a.columns[e] * WIDTH;
          UNROLL for (int t = 0; t < TILE; ++t) sums[t] += values[e] * load<Lane>(from + t * SAMPLES);
        }
        keep(i, first, width, (const real*)sums);
      }
    }
  };
  if (threads == 1) return run(0);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) run(part);
}

// The first entry of a row whose column is `column` or beyond.
INLINE int64_t entry_at(const Csr& csr, int64_t row, int64_t column) {
  return std::lower_bound(csr.columns + csr.rows[row], csr.columns + csr.rows[row + 1], column) - csr.columns;
}

}  // namespace

// Numbers of workspace for each thread where B has k rows.
extern "C" int64_t bppsa_panel_size(int64_t k) { return k * WIDTH; }

// C = A B for one sample, B dense but for zeros: all of A must be finite, or these would count. workspace: 64-aligned.
extern "C" void bppsa_multiply_panels(const Plan* plan, int64_t k, const real* a, const real* b, real* c,
                                      real* workspace, int threads) {
  const auto pack = [&](real* panel, int64_t first, int64_t width) {
    std::memset(panel, 0, k * WIDTH * sizeof(real));
    for (int64_t row = 0; row < k; ++row, panel += WIDTH) {
      for (int64_t p = entry_at(plan->b, row, first); p < plan->b.rows[row + 1]; ++p) {
        const int64_t column = plan->b.columns[p] - first;
        if (column >= width) break;
        panel[column] = b[p];
      }
    }
  };
  const auto keep = [&](int64_t i, int64_t first, int64_t width, const real* sums) {
    const int64_t begin = plan->c.rows[i], end = plan->c.rows[i + 1];
    if (end - begin == plan->m) {
      std::memcpy(c + begin + first, sums, width * sizeof(real));
      return;
    }
    for (int64_t j = entry_at(plan->c, i, first); j < end && plan->c.columns[j] < first + width; ++j)
      c[j] = sums[plan->c.columns[j] - first];
  };
  panels(plan->a, a, plan->n, plan->m, workspace, bppsa_panel_size(k), threads, pack, keep);
}

// out [n, m] = J^T w; w: [k, m], rows `w_step` apart, of out `out_step`.
extern "C" void bppsa_mm(const Csr* j, int64_t n, int64_t k, int64_t m, const real* values, const real* w,
                         int64_t w_step, real* out, int64_t out_step, real* workspace, int threads) {
  const auto pack = [&](real* panel, int64_t first, int64_t width) {
    for (int64_t row = 0; row < k; ++row) std::memcpy(panel + row * WIDTH, w + row * w_step + first, width * sizeof(real));
  };
  const auto keep = [&](int64_t i, int64_t first, int64_t width, const real* sums) {
    std::memcpy(out + i * out_step + first, sums, width * sizeof(real));
  };
  panels(*j, values, n, m, workspace, bppsa_panel_size(k), threads, pack, keep);
}
