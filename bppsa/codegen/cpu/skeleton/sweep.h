// What the printed sweep is built from: row cursors, blocks of columns, packing, column sums, barrier.
namespace {

constexpr int64_t CHUNK = 16;  // rows whose dot products are kept before the expressions use them

INLINE double as_double(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Where each operand's rows of the current step start: row b of operand i at at[i] + b * row[i].
template <int N>
struct Cursor {
  real* at[N];
  int64_t row[N], step[N];
  INLINE void set(int i, real* start, int64_t row_stride, int64_t step_stride) {
    at[i] = start, row[i] = row_stride, step[i] = step_stride;
  }
  INLINE void shift(int i, int64_t rows) { at[i] += rows * row[i]; }
  INLINE void hold(int i, int64_t at_row) {
    shift(i, at_row);
    row[i] = 0;
  }
  INLINE void advance() {
    for (int i = 0; i < N; ++i) at[i] += step[i];
  }
};

// The arguments of one call, as the C entry point takes them.
struct Call {
  void** pointers;
  const int64_t *first_strides, *second_strides;  // of each tensor's first and second dimension
  int64_t steps, rows, columns;
  const int64_t* active;
  bool reverse;
  INLINE real* at(int argument, int64_t t = 0) const { return (real*)pointers[argument] + t * first_strides[argument]; }
};

// A group's columns in equal blocks of whole point vectors (the last may be narrower), one panel of weights each.
struct Blocks {
  int64_t width, units, count;
  INLINE Blocks(int64_t width, int64_t most, int64_t lanes) : width(width) {
    count = ceil_div(width, most);
    units = ceil_div(width, count);
    if (count > 1) {
      units = units + lanes - 1 - (units + lanes - 1) % lanes;
      if (units > most) units = most;
      count = ceil_div(width, units);
    }
  }
  INLINE int64_t begin(int64_t block) const { return block * units; }
  INLINE int64_t end(int64_t block) const { return block + 1 == count ? width : (block + 1) * units; }
  INLINE int64_t first(int part, int parts) const { return count * part / parts; }
  INLINE int64_t size(int64_t block) const { return end(block) - begin(block); }
};

// Copies columns [depth, column..column+columns) of a weight to a panel of `pitch` columns. In strips of k, so that a
// transposed weight's cache lines are used up before they go.
inline void pack(const Call& call, int weight, int64_t column, int64_t columns, int64_t depth, real* panel,
                 int64_t pitch) {
  const int64_t k_stride = call.first_strides[weight], column_stride = call.second_strides[weight];
  const real* from = call.at(weight) + column * column_stride;
  if (column_stride == 1) {
    for (int64_t k = 0; k < depth; ++k) std::memcpy(panel + k * pitch, from + k * k_stride, columns * sizeof(real));
    return;
  }
  for (int64_t begin = 0; begin < depth; begin += LINE) {
    const int64_t end = std::min(begin + LINE, depth);
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t k = begin; k < end; ++k) panel[k * pitch + j] = from[k * k_stride + j * column_stride];
  }
}

// Sums over rows and steps: short sums of reals, flushed into doubles, so that 10^6 terms lose no digits.
struct ColumnSum {
  int64_t width;
  real* part;     // [threads, padded width]; of one thread: [padded width]
  double* total;  // likewise
  void place(Arena& arena, int64_t columns, int threads) {
    width = columns;
    part = arena.take<real>(threads * padded(width));
    total = arena.take<double>(threads * padded(width));
  }
  ColumnSum of(int thread) const { return {width, part + thread * padded(width), total + thread * padded(width)}; }
  void clear() const {
    std::memset(part, 0, width * sizeof(real));
    std::memset(total, 0, width * sizeof(double));
  }
  void flush() const {
    for (int64_t j = 0; j < width; ++j) total[j] += part[j], part[j] = 0;
  }
  void reduce(real* target, int threads) const {
    for (int64_t j = 0; j < width; ++j) {
      double sum = 0;
      for (int i = 0; i < threads; ++i) sum += total[i * padded(width) + j];
      target[j] = sum;
    }
  }
};
constexpr int64_t FLUSH_ROWS = 256;

// One thread's share of a step: all columns of some rows, or, with `parts` > 1, some blocks of every group's columns.
struct Share {
  int64_t begin, end;  // rows
  int part, parts;     // columns
};

// Threads that share the columns meet here between groups. Waits are short, so it spins. Where that fails too often other
// work is on the cores, and waiting for it in every step would be far slower than one thread: the first goes on alone.
class alignas(64) Barrier {
 public:
  // False: this thread's work is done.
  bool wait(Share& share) {
    const int64_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == share.parts) {
      arrived_.store(0, std::memory_order_relaxed);
      alone_ = late_.load(std::memory_order_relaxed) > MOST_LATE + phase / STEPS_PER_LATE;
      phase_.store(phase + 1, std::memory_order_release);
    } else {
      for (int spins = 0; spins < SPINS && phase_.load(std::memory_order_acquire) == phase; ++spins) PAUSE();
      if (phase_.load(std::memory_order_acquire) == phase) yield_until_past(phase);
    }
    if (!alone_) return true;
    share.parts = 1;
    return share.part == 0;
  }

 private:
  static constexpr int SPINS = 128;
  static constexpr int64_t LATE_NS = 20000, MOST_LATE = 4, STEPS_PER_LATE = 256;

  void yield_until_past(int64_t phase) {
    const auto start = std::chrono::steady_clock::now();
    while (phase_.load(std::memory_order_acquire) == phase) sched_yield();
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > LATE_NS) late_.fetch_add(1, std::memory_order_relaxed);
  }

  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<int64_t> late_{0};
  alignas(64) std::atomic<int64_t> phase_{0};
  bool alone_ = false;
};

// First row of share `part` of `parts`: shares hold equally many (row, step) pairs, also in packed sequences.
inline int64_t first_row(int64_t part, int64_t parts, int64_t rows, int64_t steps, const int64_t* active) {
  if (active == nullptr) return rows * part / parts;
  const auto pairs_below = [&](int64_t row) {
    int64_t pairs = 0;
    for (int64_t t = 0; t < steps; ++t) pairs += active[t] < row ? active[t] : row;
    return pairs;
  };
  const int64_t goal = pairs_below(rows) * part / parts;
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (pairs_below(middle) < goal) low = middle + 1; else high = middle;
  }
  return part == parts ? rows : low;
}

}  // namespace
