// The blocked layout: a pixel is a cache line, which holds the L samples of a block side by side.
namespace {

constexpr int64_t L = 64 / sizeof(real);
using V = Vec<L>;

constexpr int64_t AHEAD = 64;  // entries by which memory is asked for before it is needed

struct Range {
  int64_t begin, end;
};

INLINE Range share(int64_t n, int part, int parts) { return {n * part / parts, n * (part + 1) / parts}; }

INLINE V rectified(V x) { return x <= V{} ? V{} : x; }  // a NaN stays one

// A cotangent where `kept`, a rectified value, is not zero.
INLINE V passed(V cotangent, V kept) { return kept <= V{} ? V{} : cotangent; }

using Byte = unsigned char;
typedef Byte Bytes __attribute__((vector_size(L)));

// Places in a window, one in each lane, are bytes in memory.
INLINE Int<V> load_places(const Byte* from) {
  Bytes bytes;
  __builtin_memcpy(&bytes, from, L);
  return __builtin_convertvector(bytes, Int<V>);
}

INLINE void store_places(Byte* to, Int<V> places) {
  const Bytes bytes = __builtin_convertvector(places, Bytes);
  __builtin_memcpy(to, &bytes, L);
}

// The largest of what it has seen, lane by lane, and where that was: the first of equal ones, the last NaN, as in PyTorch.
struct Maximum {
  V value{};
  Int<V> place{};
  bool none = true;
  INLINE void see(V x, int64_t at) {
    const Int<V> better = none ? ~Int<V>{} : (x > value) | (x != x);
    value = better ? x : value, place = better ? Int<V>{} + (integer)at : place;
    none = false;
  }
};

// In each group of 2 HALF lanes: the sums of a's lanes HALF apart, then those of b's.
template <int HALF>
INLINE V folded(V a, V b) {
  Int<V> near, far;
  UNROLL for (int i = 0; i < L; ++i) near[i] = i & HALF ? L + i : i, far[i] = i & HALF ? L + i - HALF : i + HALF;
  return __builtin_shuffle(a, b, near) + __builtin_shuffle(a, b, far);
}

// Lane i: the sum of vector i of L. A sum on its own would shuffle four times as often.
template <int STEP = 1>
INLINE V lane_sums(const V* vectors) {
  if constexpr (STEP == L) return vectors[0];
  else return folded<STEP>(lane_sums<2 * STEP>(vectors), lane_sums<2 * STEP>(vectors + STEP));
}

// target[0 .. count] = source, past the caches where the machine can; FENCE() makes it seen by other threads.
INLINE void stream(const real* source, real* target, int64_t count) {
  int64_t i = 0;
  for (; i < count && (uintptr_t)(target + i) % sizeof(V) != 0; ++i) target[i] = source[i];
  for (; count - i >= L; i += L) copy_line(source + i, target + i);
  for (; i < count; ++i) target[i] = source[i];
}

// Runs f(part, parts) on so many threads.
template <class F>
void in_parallel(int threads, F f) {
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    f(omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  f(0, 1);
}

}  // namespace
