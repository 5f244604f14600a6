// A product as it is rounded, which the compiler does not make one op of with a sum.

#if defined(__has_builtin)
#if __has_builtin(__builtin_assoc_barrier)
#define KEPT_APART(x) __builtin_assoc_barrier(x)
#endif
#endif

namespace {

template <class V>
INLINE V rounded(V x) {
#if defined(KEPT_APART)
  return KEPT_APART(x);
#elif defined(__clang__)
  return x;  // it makes one op of two within one expression alone, and each has its own here
#else
  asm("" : "+m"(x));
  return x;
#endif
}

}  // namespace
