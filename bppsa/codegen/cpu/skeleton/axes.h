// Vectors along an axis whose elements do not stand side by side: the first `count` lanes, `stride` apart.
#define INLINED __attribute__((always_inline))

namespace {

template <class V>
INLINE V gather(const real* p, int64_t stride, int64_t count) {
  V v{};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i * stride];
  return v;
}

template <class V>
INLINE void scatter(real* p, int64_t stride, int64_t count, V v) {
  for (int64_t i = 0; i < count; ++i) p[i * stride] = v[i];
}

// Calls f(mask, j, lanes) for all elements of an axis of size n, a vector of them at a time.
template <class V, class F>
INLINE void along(int64_t n, F f) {
  int64_t j = 0;
  for (; j + LANES<V> <= n; j += LANES<V>) f(Full<V>{}, j, LANES<V>);
  if (j < n) f(Tail<V>(n - j), j, n - j);
}

// Calls f(count, mask, start, lanes) for all elements of an axis of size n: K vectors at a time, then one by one.
template <class V, int K, class F>
INLINE void panels(int64_t n, F f) {
  constexpr std::integral_constant<int, 1> one;
  int64_t j = 0;
  if constexpr (K > 1)
    for (; j + K * LANES<V> <= n; j += K * LANES<V>) f(std::integral_constant<int, K>{}, Full<V>{}, j, LANES<V>);
  for (; j + LANES<V> <= n; j += LANES<V>) f(one, Full<V>{}, j, LANES<V>);
  if (j < n) f(one, Tail<V>(n - j), j, n - j);
}

}  // namespace
