// Vectors of `real` (float or double, defined by the printed unit) and how they touch memory: all or the first lanes.
// The language's own vector types do the arithmetic; where it has no word for an instruction, intrinsics.h has.
#if defined(_OPENMP)
#include <omp.h>
#endif
#include <sched.h>

// The compiler reads these for every kernel: what only some of them need (vector) is included there, and nothing includes
// cmath.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define UNROLL _Pragma("GCC unroll 16")
#define NOINLINE __attribute__((noinline))
#define INLINE inline __attribute__((always_inline))

// INTRINSIC(V, name, ...) returns what the instruction for vectors V computes, and is nothing where there is none.
// PIN(x) keeps a value in its register: the compiler would fold the load into every instruction that uses it.
#if WIDE
#define PIN(x) asm("" : "+v"(x))
#define INTRINSIC(V, name, ...)                                                     \
  if constexpr (sizeof(V) == 64 && SINGLE) return _mm512_##name##_ps(__VA_ARGS__);  \
  if constexpr (sizeof(V) == 64 && !SINGLE) return _mm512_##name##_pd(__VA_ARGS__); \
  if constexpr (sizeof(V) == 32 && SINGLE) return _mm256_##name##_ps(__VA_ARGS__);  \
  if constexpr (sizeof(V) == 32 && !SINGLE) return _mm256_##name##_pd(__VA_ARGS__)
#elif defined(__AVX2__)
#define PIN(x) asm("" : "+x"(x))
#define INTRINSIC(V, name, ...)                                                    \
  if constexpr (sizeof(V) == 32 && SINGLE) return _mm256_##name##_ps(__VA_ARGS__); \
  if constexpr (sizeof(V) == 32 && !SINGLE) return _mm256_##name##_pd(__VA_ARGS__)
#else
#define PIN(x)
#define INTRINSIC(V, name, ...)
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

// Halves upon halves: one after the other the additions would wait for each other.
template <class V>
INLINE real sum(V v) {
  if constexpr (LANES<V> == 1) {
    return v[0];
  } else {
    using Half = Vec<LANES<V> / 2>;
    return sum(load<Half>((const real*)&v) + load<Half>((const real*)&v + LANES<V> / 2));
  }
}

// All lanes of a vector.
template <class V>
struct Full {
  INLINE V load(const real* p) const { return ::load<V>(p); }
  INLINE void store(real* p, V v) const { ::store(p, v); }
  INLINE V keep(V v) const { return v; }
  INLINE V keep(V v, V) const { return v; }
};

// The first n lanes, 0 < n < LANES: memory beyond them is neither read nor written. keep: v with 0, or another
// vector, in the other lanes.
template <class V>
struct Tail {
#if WIDE
  __mmask16 lanes;
  INLINE explicit Tail(int64_t n) : lanes((1u << n) - 1) {}
  INLINE V load(const real* p) const { INTRINSIC(V, maskz_loadu, lanes, p); }
  INLINE void store(real* p, V v) const { INTRINSIC(V, mask_storeu, p, lanes, v); }
  INLINE V keep(V v) const { INTRINSIC(V, maskz_mov, lanes, v); }
  INLINE V keep(V v, V other) const { INTRINSIC(V, mask_mov, other, lanes, v); }
#elif defined(__AVX2__)
  Int<V> lanes;
  INLINE explicit Tail(int64_t n) {
    for (int i = 0; i < LANES<V>; ++i) lanes[i] = -(i < n);
  }
  INLINE V load(const real* p) const {
    if constexpr (SINGLE) return (V)_mm256_maskload_ps((const float*)p, (__m256i)lanes);
    if constexpr (!SINGLE) return (V)_mm256_maskload_pd((const double*)p, (__m256i)lanes);
  }
  INLINE void store(real* p, V v) const {
    if constexpr (SINGLE) _mm256_maskstore_ps((float*)p, (__m256i)lanes, (__m256)v);
    if constexpr (!SINGLE) _mm256_maskstore_pd((double*)p, (__m256i)lanes, (__m256d)v);
  }
  INLINE V keep(V v) const { return (V)((Int<V>)v & lanes); }
  INLINE V keep(V v, V other) const { return lanes ? v : other; }
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
  INLINE V keep(V v, V other) const {
    for (int64_t i = n; i < LANES<V>; ++i) v[i] = other[i];
    return v;
  }
#endif
};

}  // namespace
