// What is done by instructions that C++ has no word for; the only file that names a machine's. Each has a form for all
// other machines beside it. Reading all of immintrin.h takes as long as building a small kernel, so what is used of it is
// here by the names that GCC itself has for these instructions.
#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#define FENCE() __builtin_ia32_sfence()
#else
#define PAUSE()
#define FENCE()
#endif

// WIDE: vectors of 64 bytes, and masks for each lane.
#if defined(__AVX512F__) && defined(__AVX512VL__)
#define WIDE 1
#else
#define WIDE 0
#endif

#if defined(__x86_64__) && (defined(__clang__) || (WIDE && (__GNUC__ < 9 || __GNUC__ > 14)))
#include <immintrin.h>
#elif defined(__AVX2__)
typedef float __m256 __attribute__((vector_size(32), may_alias));
typedef double __m256d __attribute__((vector_size(32), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef int __m256w __attribute__((vector_size(32), may_alias));
#define _mm256_min_ps __builtin_ia32_minps256
#define _mm256_min_pd __builtin_ia32_minpd256
#define _mm256_max_ps __builtin_ia32_maxps256
#define _mm256_max_pd __builtin_ia32_maxpd256
#define _mm256_sqrt_ps __builtin_ia32_sqrtps256
#define _mm256_sqrt_pd __builtin_ia32_sqrtpd256
#define _mm256_maskload_ps(p, lanes) __builtin_ia32_maskloadps256((const __m256*)(p), (__m256w)(lanes))
#define _mm256_maskload_pd(p, lanes) __builtin_ia32_maskloadpd256((const __m256d*)(p), lanes)
#define _mm256_maskstore_ps(p, lanes, v) __builtin_ia32_maskstoreps256((__m256*)(p), (__m256w)(lanes), v)
#define _mm256_maskstore_pd(p, lanes, v) __builtin_ia32_maskstorepd256((__m256d*)(p), lanes, v)
#define _mm256_stream_si256 __builtin_ia32_movntdq256
#if WIDE
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef double __m512d __attribute__((vector_size(64), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef int __m512w __attribute__((vector_size(64), may_alias));
typedef unsigned short __mmask16;
// Of a result no lane is masked out, and rounding is as the thread has set it.
#define _mm512_min_ps(a, b) __builtin_ia32_minps512_mask(a, b, a, -1, 4)
#define _mm512_min_pd(a, b) __builtin_ia32_minpd512_mask(a, b, a, -1, 4)
#define _mm512_max_ps(a, b) __builtin_ia32_maxps512_mask(a, b, a, -1, 4)
#define _mm512_max_pd(a, b) __builtin_ia32_maxpd512_mask(a, b, a, -1, 4)
#define _mm512_sqrt_ps(a) __builtin_ia32_sqrtps512_mask(a, a, -1, 4)
#define _mm512_sqrt_pd(a) __builtin_ia32_sqrtpd512_mask(a, a, -1, 4)
#define _mm512_scalef_ps(a, b) __builtin_ia32_scalefps512_mask(a, b, a, -1, 4)
#define _mm512_scalef_pd(a, b) __builtin_ia32_scalefpd512_mask(a, b, a, -1, 4)
#define _mm256_scalef_ps(a, b) __builtin_ia32_scalefps256_mask(a, b, a, -1)
#define _mm256_scalef_pd(a, b) __builtin_ia32_scalefpd256_mask(a, b, a, -1)
#define _mm512_maskz_mov_ps(lanes, v) __builtin_ia32_movaps512_mask(v, (__m512){}, lanes)
#define _mm512_maskz_mov_pd(lanes, v) __builtin_ia32_movapd512_mask(v, (__m512d){}, lanes)
#define _mm256_maskz_mov_ps(lanes, v) __builtin_ia32_movaps256_mask(v, (__m256){}, lanes)
#define _mm256_maskz_mov_pd(lanes, v) __builtin_ia32_movapd256_mask(v, (__m256d){}, lanes)
#define _mm512_mask_mov_ps(other, lanes, v) __builtin_ia32_movaps512_mask(v, other, lanes)
#define _mm512_mask_mov_pd(other, lanes, v) __builtin_ia32_movapd512_mask(v, other, lanes)
#define _mm256_mask_mov_ps(other, lanes, v) __builtin_ia32_movaps256_mask(v, other, lanes)
#define _mm256_mask_mov_pd(other, lanes, v) __builtin_ia32_movapd256_mask(v, other, lanes)
#define _mm512_maskz_loadu_ps(lanes, p) __builtin_ia32_loadups512_mask((const float*)(p), (__m512){}, lanes)
#define _mm512_maskz_loadu_pd(lanes, p) __builtin_ia32_loadupd512_mask((const double*)(p), (__m512d){}, lanes)
#define _mm256_maskz_loadu_ps(lanes, p) __builtin_ia32_loadups256_mask((const float*)(p), (__m256){}, lanes)
#define _mm256_maskz_loadu_pd(lanes, p) __builtin_ia32_loadupd256_mask((const double*)(p), (__m256d){}, lanes)
#define _mm512_mask_storeu_ps(p, lanes, v) __builtin_ia32_storeups512_mask((float*)(p), v, lanes)
#define _mm512_mask_storeu_pd(p, lanes, v) __builtin_ia32_storeupd512_mask((double*)(p), v, lanes)
#define _mm256_mask_storeu_ps(p, lanes, v) __builtin_ia32_storeups256_mask((float*)(p), v, lanes)
#define _mm256_mask_storeu_pd(p, lanes, v) __builtin_ia32_storeupd256_mask((double*)(p), v, lanes)
#define _mm512_stream_si512 __builtin_ia32_movntdq512
#define _mm512_set1_epi32(x) ((__m512i)((__m512w){} + (int)(x)))
#define _mm512_maskz_loadu_epi32(lanes, p) \
  ((__m512i)__builtin_ia32_loaddqusi512_mask((const int*)(p), (__m512w){}, lanes))
#define _mm256_maskz_loadu_epi32(lanes, p) \
  ((__m256i)__builtin_ia32_loaddqusi256_mask((const int*)(p), (__m256w){}, lanes))
#define _mm512_mask_cmplt_epi32_mask(lanes, a, b) \
  ((__mmask16)__builtin_ia32_cmpd512_mask((__m512w)(a), (__m512w)(b), 1, lanes))
#define _mm512_mask_i32gather_ps(other, lanes, at, p, scale) \
  __builtin_ia32_gathersiv16sf(other, p, (__m512w)(at), lanes, scale)
#define _mm512_mask_i32gather_pd(other, lanes, at, p, scale) \
  __builtin_ia32_gathersiv8df(other, p, (__m256w)(at), lanes, scale)
#endif
#endif

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
  // The lanes whose bits are set.
  static INLINE Tail of(uint32_t bits) {
    Tail tail(0);
    tail.lanes = bits;
    return tail;
  }
  // Lane i: from[at[i]], of vectors of 64 bytes.
  INLINE V gather(const real* from, const int32_t* at) const {
    if constexpr (SINGLE) {
      return (V)_mm512_mask_i32gather_ps(__m512{}, lanes, _mm512_maskz_loadu_epi32(lanes, at), from, 4);
    } else {
      return (V)_mm512_mask_i32gather_pd(__m512d{}, lanes, _mm256_maskz_loadu_epi32(lanes, at), from, 8);
    }
  }
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

// Copies 64 bytes to an address that is a multiple of that, past the caches where the machine can; FENCE() makes it seen
// by other threads.
INLINE void copy_line(const real* from, real* to) {
#if WIDE
  _mm512_stream_si512((__m512i*)to, (__m512i)load<Vec<64 / sizeof(real)>>(from));
#elif defined(__AVX2__)
  constexpr int HALF = 32 / sizeof(real);
  _mm256_stream_si256((__m256i*)to, (__m256i)load<Vec<HALF>>(from));
  _mm256_stream_si256((__m256i*)(to + HALF), (__m256i)load<Vec<HALF>>(from + HALF));
#else
  store(to, load<Vec<64 / sizeof(real)>>(from));
#endif
}

// How many of these ascending numbers are below a bound.
INLINE int64_t count_below(const int32_t* numbers, int64_t count, int32_t bound) {
#if WIDE
  if (count <= 16) {  // without a branch for each, which nothing could foresee
    const __mmask16 inside = (1u << count) - 1;
    const __m512i given = _mm512_maskz_loadu_epi32(inside, numbers);
    return __builtin_popcount(_mm512_mask_cmplt_epi32_mask(inside, given, _mm512_set1_epi32(bound)));
  }
#endif
  return std::lower_bound(numbers, numbers + count, bound) - numbers;
}

}  // namespace
