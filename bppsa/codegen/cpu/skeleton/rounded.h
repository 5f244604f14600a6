// A product as it is rounded, which the compiler does not make one op of with a sum.

namespace {

template <class V>
INLINE V rounded(V x) {
#if defined(__clang__)
  return x;  // makes one op of two within one expression alone, and each has its own here
#elif defined(__has_builtin) && __has_builtin(__builtin_assoc_barrier)
  return __builtin_assoc_barrier(x);
#else
  asm("" : "+m"(x));
  return x;
#endif
}

}  // namespace
