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

// Calls f(count, j) for all indices of an axis of size n: four at a time, then one by one.
template <class F>
INLINE void in_fours(int64_t n, F f) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) f(std::integral_constant<int, 4>{}, j);
  for (; j < n; ++j) f(std::integral_constant<int, 1>{}, j);
}

// Lane i of the result is lane from(i) of a, then b.
template <class V, class F, int... I>
INLINE V pick(V a, V b, F from, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, from(I)...);
#else
  return __builtin_shuffle(a, b, Int<V>{from(I)...});
#endif
}

// Of blocks of 2 * H lanes of a, and of b: their lower halves added to their upper ones, a block's of a before that of b.
template <int H, class V>
INLINE V add_halves(V a, V b) {
  constexpr int L = LANES<V>;
  constexpr auto all = std::make_integer_sequence<int, L>{};
  const V low = pick(a, b, [](int i) { return i % (2 * H) < H ? i : i - H + L; }, all);
  const V high = pick(a, b, [](int i) { return i % (2 * H) < H ? i + H : i + L; }, all);
  return low + high;
}

// The sums of four vectors, in the first four lanes: halves upon halves, as `sum` adds them up.
template <class V>
INLINE V sums(V a, V b, V c, V d) {
  constexpr int L = LANES<V>;
  V v = add_halves<L / 4>(add_halves<L / 2>(a, c), add_halves<L / 2>(b, d));  // blocks of a, b, c, d
  if constexpr (L >= 8) v = add_halves<L / 8>(v, v);
  if constexpr (L >= 16) v = add_halves<L / 16>(v, v);
  return pick(v, v, [](int i) { return i % 4 * (L / 4); }, std::make_integer_sequence<int, L>{});
}

// Sets elements of p, `stride` apart, to the sums of the vectors, or adds these to them.
template <class V, int R>
INLINE void put_sums(real* p, int64_t stride, const V (&v)[R], bool adds) {
  if constexpr (R == 4 && LANES<V> >= 4) {
    const V found = sums(v[0], v[1], v[2], v[3]);
    for (int r = 0; r < R; ++r) p[r * stride] = adds ? p[r * stride] + found[r] : found[r];
  } else {
    for (int r = 0; r < R; ++r) p[r * stride] = adds ? p[r * stride] + sum(v[r]) : sum(v[r]);
  }
}

}  // namespace
