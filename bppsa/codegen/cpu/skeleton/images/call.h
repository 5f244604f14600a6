// Entry points of one form, so that a table can call them: an array with an int64 for each argument, a number or an
// address.
namespace {

template <class... A, size_t... I>
INLINE void unpacked(void (*f)(A...), const int64_t* arguments, std::index_sequence<I...>) {
  f((A)arguments[I]...);
}

template <class... A>
constexpr int64_t count_of(void (*)(A...)) {
  return sizeof...(A);
}

}  // namespace

// bppsa_NAME calls f, and bppsa_NAME_count is how many arguments it takes.
#define ENTRY(name, f)                                                    \
  extern "C" void bppsa_##name(const int64_t* arguments) {                \
    unpacked(f, arguments, std::make_index_sequence<(size_t)count_of(f)>()); \
  }                                                                       \
  extern "C" const int64_t bppsa_##name##_count = count_of(f);
