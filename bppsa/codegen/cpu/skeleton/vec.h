// Vectors of `real` (float or double, defined by the printed unit). The language's own vector types do the arithmetic;
// where it has no word for an instruction, intrinsics.h has.
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

}  // namespace
