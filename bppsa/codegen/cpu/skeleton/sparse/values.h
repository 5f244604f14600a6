// Values of transposed Jacobians that are ones and zeros.
namespace {

// The entry at `column`, which must be there, of the row of entries `begin` to `end`.
INLINE int64_t entry_at(const Csr& j, int64_t begin, int64_t end, int32_t column) {
  return begin + count_below(j.columns + begin, end - begin, column);
}

}  // namespace

// Entry (p, w) of the grid is 1 in those planes in which window w took place p. grid: [places, windows].
extern "C" void bppsa_chosen(const Csr* grid, int64_t places, int64_t windows, const int64_t* taken, real* out,
                             int64_t planes, int threads) {
  const int64_t *rows = grid->rows, entries = rows[places];
  bool apart = true;  // each place in one window: its entry has its number
  for (int64_t p = 0; p <= places; ++p) apart &= rows[p] == p;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t plane = 0; plane < planes; ++plane) {
    const int64_t* place = taken + plane * windows;
    real* to = out + plane * entries;
    std::fill_n(to, entries, real(0));
    if (apart) {
      for (int64_t w = 0; w < windows; ++w) to[place[w]] = 1;
    } else {
      for (int64_t w = 0; w < windows; ++w) to[entry_at(*grid, rows[place[w]], rows[place[w] + 1], w)] = 1;
    }
  }
}
