// Entry points of a recurrence's program (images/table.h): rows are copied, added and scaled, kernels swept, products computed.
namespace {

// Rows of `width` reals; without a source they become zeros.
void copy(const real* from, real* to, int64_t from_stride, int64_t to_stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, to += to_stride) {
    if (from == nullptr) {
      std::memset(to, 0, width * sizeof(real));
    } else {
      std::memcpy(to, from + r * from_stride, width * sizeof(real));
    }
  }
}

void add(const real* from, real* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void scale(const real* from, const real* by, real* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * by[i];
}

using Sweep = void (*)(void* const*, const int64_t*, const int64_t*, const int64_t*, int64_t, int64_t, int64_t,
                       const int64_t*, int, int, int, void*);

}  // namespace

ENTRY(copy, copy)
ENTRY(add, add)
ENTRY(scale, scale)

// A kernel's `bppsa_sweep`, both strides of its arguments, its dims, steps, rows, reverse, threads, split, workspace,
// and its arguments.
extern "C" void bppsa_sweep_call(const int64_t* a) {
  ((Sweep)a[0])((void* const*)(a + 10), (const int64_t*)a[1], (const int64_t*)a[2], (const int64_t*)a[3], a[4], a[5], 1,
                nullptr, (int)a[6], (int)a[7], (int)a[8], (void*)a[9]);
}

// Rows, threads, workspace, and the words of `bppsa_products`.
extern "C" void bppsa_products_call(const int64_t* a) { bppsa_products(a + 3, a[0], (int)a[1], (void*)a[2]); }
