// The symbolic phase of a product of CSR patterns, A [n, k] times B [k, m], row by row (Gustavson).
#include <algorithm>
#include <cstdint>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

struct Factors {
  const int64_t* a_rows;
  const int32_t* a_columns;
  const int64_t* b_rows;
  const int32_t* b_columns;

  // f(column of B) for each product of row i, in order.
  template <class F>
  void each(int64_t i, F f) const {
    for (int64_t e = a_rows[i]; e < a_rows[i + 1]; ++e) {
      const int64_t k = a_columns[e];
      for (int64_t p = b_rows[k]; p < b_rows[k + 1]; ++p) f(b_columns[p]);
    }
  }
};

// A set of columns, as bits.
struct Columns {
  std::vector<uint64_t> words;
  int64_t first, last;  // words that may have bits

  explicit Columns(int64_t m) : words(m / 64 + 1), first(words.size()), last(-1) {}
  void add(int64_t column) {
    const int64_t word = column / 64;
    words[word] |= uint64_t(1) << (column % 64);
    first = std::min(first, word), last = std::max(last, word);
  }
  // f(column) for each, ascending; leaves the set empty.
  template <class F>
  void take(F f) {
    for (int64_t word = first; word <= last; ++word) {
      for (uint64_t bits = words[word]; bits != 0; bits &= bits - 1) f(word * 64 + __builtin_ctzll(bits));
      words[word] = 0;
    }
    first = words.size(), last = -1;
  }
  int64_t take_count() {
    int64_t count = 0;
    for (int64_t word = first; word <= last; ++word) count += __builtin_popcountll(words[word]), words[word] = 0;
    first = words.size(), last = -1;
    return count;
  }
};

// Rows in parts with about as many products each: calls f(first row, end) on each thread.
template <class F>
void split(const int64_t* starts, int64_t n, int threads, F f) {
  const auto first = [&](int64_t part) {
    return std::lower_bound(starts, starts + n, starts[n] * part / threads) - starts;
  };
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) f(part == 0 ? 0 : first(part), part + 1 == threads ? n : first(part + 1));
}

}  // namespace

// Entries of each row of C, into counts [n]. starts [n + 1]: the products before those of each row.
extern "C" void bppsa_count(const int64_t* a_rows, const int32_t* a_columns, const int64_t* b_rows,
                            const int32_t* b_columns, const int64_t* starts, int64_t n, int64_t m, int threads,
                            int64_t* counts) {
  const Factors factors{a_rows, a_columns, b_rows, b_columns};
  split(starts, n, threads, [&](int64_t begin, int64_t end) {
    Columns columns(m);
    for (int64_t i = begin; i < end; ++i) {
      factors.each(i, [&](int64_t column) { columns.add(column); });
      counts[i] = columns.take_count();
    }
  });
}

// The columns of C, and the slot of each product in its row unless slots is null.
extern "C" void bppsa_fill(const int64_t* a_rows, const int32_t* a_columns, const int64_t* b_rows,
                           const int32_t* b_columns, const int64_t* starts, int64_t n, int64_t m, int threads,
                           const int64_t* c_rows, int64_t* c_columns, int32_t* slots) {
  const Factors factors{a_rows, a_columns, b_rows, b_columns};
  split(starts, n, threads, [&](int64_t begin, int64_t end) {
    Columns columns(m);
    std::vector<int32_t> slot_of(slots == nullptr ? 0 : m);
    for (int64_t i = begin; i < end; ++i) {
      factors.each(i, [&](int64_t column) { columns.add(column); });
      int64_t* to = c_columns + c_rows[i];
      int32_t slot = 0;
      columns.take([&](int64_t column) {
        to[slot] = column;
        if (slots != nullptr) slot_of[column] = slot;
        ++slot;
      });
      if (slots == nullptr) continue;
      int32_t* at = slots + starts[i];
      factors.each(i, [&](int64_t column) { *at++ = slot_of[column]; });
    }
  });
}
