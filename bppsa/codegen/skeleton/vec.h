// Vectors of `real` (float or double, defined by the printed unit), and the three ways to touch memory: full, tail, broadcast.
// GCC/Clang vector extensions do the arithmetic; intrinsics appear only where the language has no word for the instruction.
#if defined(_OPENMP)
#include <omp.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))
#if defined(__x86_64__)
#define PAUSE() _mm_pause()
#else
#define PAUSE()
#endif
#if defined(__AVX512F__)
#define PIN(x) asm("" : "+v"(x))  // the value stays in a register: never folded back into a memory operand
#elif defined(__AVX__)
#define PIN(x) asm("" : "+x"(x))
#else
#define PIN(x)
#endif

namespace {

constexpr bool SINGLE = sizeof(real) == 4;
using integer = std::conditional_t<SINGLE, int32_t, int64_t>;

template <int L>
struct Lanes {
  typedef real vector __attribute__((vector_size(sizeof(real) * L)));
  typedef integer mask __attribute__((vector_size(sizeof(real) * L)));
};
template <int L>
using Vec = typename Lanes<L>::vector;
template <class V>
constexpr int LANES = sizeof(V) / sizeof(real);
template <class V>
using Int = typename Lanes<LANES<V>>::mask;

template <class V>
INLINE V splat(real x) {
  return x - V{};
}

template <class V>
INLINE V load(const real* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
INLINE void store(real* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

template <class V>
INLINE real sum(V v) {
  real total = 0;
  for (int i = 0; i < LANES<V>; ++i) total += v[i];
  return total;
}

// All lanes of a vector. Same interface as Tail.
template <class V>
struct Full {
  INLINE V load(const real* p) const { return ::load<V>(p); }
  INLINE void store(real* p, V v) const { ::store(p, v); }
  INLINE V keep(V v) const { return v; }
};

// The first n lanes of a vector, 0 < n < LANES: memory beyond them is neither read nor written.
template <class V>
struct Tail {
#if defined(__AVX512F__) && defined(__AVX512VL__)
  __mmask16 lanes;
  INLINE explicit Tail(int64_t n) : lanes((1u << n) - 1) {}
  INLINE V load(const real* p) const {
    if constexpr (sizeof(V) == 64) return SINGLE ? (V)_mm512_maskz_loadu_ps(lanes, p) : (V)_mm512_maskz_loadu_pd(lanes, p);
    if constexpr (sizeof(V) == 32) return SINGLE ? (V)_mm256_maskz_loadu_ps(lanes, p) : (V)_mm256_maskz_loadu_pd(lanes, p);
  }
  INLINE void store(real* p, V v) const {
    if constexpr (sizeof(V) == 64 && SINGLE) _mm512_mask_storeu_ps(p, lanes, (__m512)v);
    if constexpr (sizeof(V) == 64 && !SINGLE) _mm512_mask_storeu_pd(p, lanes, (__m512d)v);
    if constexpr (sizeof(V) == 32 && SINGLE) _mm256_mask_storeu_ps(p, lanes, (__m256)v);
    if constexpr (sizeof(V) == 32 && !SINGLE) _mm256_mask_storeu_pd(p, lanes, (__m256d)v);
  }
  INLINE V keep(V v) const {
    if constexpr (sizeof(V) == 64) return SINGLE ? (V)_mm512_maskz_mov_ps(lanes, (__m512)v) : (V)_mm512_maskz_mov_pd(lanes, (__m512d)v);
    if constexpr (sizeof(V) == 32) return SINGLE ? (V)_mm256_maskz_mov_ps(lanes, (__m256)v) : (V)_mm256_maskz_mov_pd(lanes, (__m256d)v);
  }
#elif defined(__AVX2__)
  __m256i lanes;
  INLINE explicit Tail(int64_t n) {
    integer on[LANES<V>];
    for (int i = 0; i < LANES<V>; ++i) on[i] = -(i < n);
    __builtin_memcpy(&lanes, on, sizeof lanes);
  }
  INLINE V load(const real* p) const {
    return SINGLE ? (V)_mm256_maskload_ps((const float*)p, lanes) : (V)_mm256_maskload_pd((const double*)p, lanes);
  }
  INLINE void store(real* p, V v) const {
    if constexpr (SINGLE) _mm256_maskstore_ps((float*)p, lanes, (__m256)v);
    if constexpr (!SINGLE) _mm256_maskstore_pd((double*)p, lanes, (__m256d)v);
  }
  INLINE V keep(V v) const { return (V)((Int<V>)v & (Int<V>)lanes); }
#else
  int64_t n;
  INLINE explicit Tail(int64_t n) : n(n) {}
  INLINE V load(const real* p) const {
    V v{};
    for (int64_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  INLINE void store(real* p, V v) const {
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
  }
  INLINE V keep(V v) const {
    for (int64_t i = n; i < LANES<V>; ++i) v[i] = 0;
    return v;
  }
#endif
};

}  // namespace
