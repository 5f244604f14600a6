// A recurrence's steps in stretches, by one or two kernels each, for one block of rows after the other: what a kernel
// leaves for the next is still in the thread's cache. codegen/language/stretches.py defines what is done.
namespace {

using Sweep = void (*)(void**, const int64_t*, const int64_t*, const int64_t*, int64_t, int64_t, int64_t,
                       const int64_t*, int, int, int, void*);

// What an operand's address depends on. HELD: an offset in the thread's memory; SUM: likewise, added up afterwards.
enum Reach : int64_t { WHOLE, ROWS, STEPS, HELD, SUM };

// Read as int64 words, in this order.
struct Stage {
  Sweep sweep;
  const int64_t* dims;
  int64_t count;  // of operands
  const int64_t *at, *first_strides, *second_strides, *reach;
  int64_t workspace;  // offset in the thread's memory
};

struct KeptState {
  real* rows;  // [stretches, all rows, width]
  int64_t width, operand, between_steps;  // of the first stage; whether it is a state, or RUNNING
};

struct SumOver {
  real* target;
  int64_t width, part, total;  // offsets in the thread's memory: of reals, and of doubles
};

struct Stretches {
  const Stage* stages;
  const KeptState* kept;
  const SumOver* sums;
  int64_t stage_count, kept_count, sum_count;
  int64_t steps, rows, length, block, reverse, along;
  int64_t pointers, bytes;  // offset of a stage's addresses in a thread's memory, and the size of that
};

INLINE real* operand(const Stretches& all, const Stage& stage, int64_t i, char* memory, int64_t row, int64_t t) {
  switch (stage.reach[i]) {
    case WHOLE: return (real*)stage.at[i];
    case ROWS: return (real*)stage.at[i] + row * stage.first_strides[i];
    case STEPS: return (real*)stage.at[i] + t * stage.first_strides[i] + row * stage.second_strides[i];
    default: return (real*)(memory + stage.at[i]);
  }
}

// Copies what enters a stretch to where it is kept, or back.
inline void keep(const Stretches& all, char* memory, int64_t stretch, int64_t begin, int64_t end, int64_t t,
                 int64_t steps) {
  const Stage& stage = all.stages[0];
  for (int64_t k = 0; k < all.kept_count; ++k) {
    const KeptState& kept = all.kept[k];
    const int64_t i = kept.operand, size = kept.width * sizeof(real);
    real* entering = operand(all, stage, i, memory, begin, t);
    int64_t distance = stage.first_strides[i];
    if (kept.between_steps) {
      distance = stage.second_strides[i];
      if (all.reverse) entering += steps * stage.first_strides[i];
    }
    for (int64_t row = begin; row < end; ++row, entering += distance) {
      real* there = kept.rows + (stretch * all.rows + row) * kept.width;
      all.along ? std::memcpy(there, entering, size) : std::memcpy(entering, there, size);
    }
  }
}

inline void run_block(const Stretches& all, char* memory, int64_t begin, int64_t end) {
  const int64_t count = ceil_div(all.steps, all.length);
  for (int64_t n = 0; n < count; ++n) {
    const int64_t stretch = all.along ? n : count - 1 - n;
    const int64_t first = stretch * all.length, last = std::min(first + all.length, all.steps);
    const int64_t t = all.reverse ? all.steps - last : first, steps = last - first;
    keep(all, memory, stretch, begin, end, t, steps);
    for (int64_t s = 0; s < all.stage_count; ++s) {
      const Stage& stage = all.stages[s];
      void** pointers = (void**)(memory + all.pointers);
      for (int64_t i = 0; i < stage.count; ++i) pointers[i] = operand(all, stage, i, memory, begin, t);
      stage.sweep(pointers, stage.first_strides, stage.second_strides, stage.dims, steps, end - begin, 1, nullptr,
                  (int)all.reverse, 1, 0, memory + stage.workspace);
    }
    for (int64_t s = 0; s < all.sum_count; ++s) {
      const SumOver& sum = all.sums[s];
      const real* part = (const real*)(memory + sum.part);
      double* total = (double*)(memory + sum.total);
      for (int64_t j = 0; j < sum.width; ++j) total[j] += part[j];
    }
  }
}

inline void run_share(const Stretches& all, char* memory, int part, int parts) {
  for (int64_t s = 0; s < all.sum_count; ++s)
    std::memset(memory + all.sums[s].total, 0, all.sums[s].width * sizeof(double));
  const int64_t end = all.rows * (part + 1) / parts;
  for (int64_t begin = all.rows * part / parts; begin < end; begin += all.block)
    run_block(all, memory, begin, std::min(begin + all.block, end));
}

}  // namespace

// words: a `Stretches`. memory: aligned, `bytes` for each thread.
extern "C" void bppsa_stretches(const int64_t* words, void* memory, int threads) {
  Stretches all;
  static_assert(sizeof all % sizeof(int64_t) == 0 && sizeof(void*) == sizeof(int64_t));
  std::memcpy(&all, words, sizeof all);
  int parts = 1;
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const int part = omp_get_thread_num();
      if (part == 0) parts = omp_get_num_threads();
      run_share(all, (char*)memory + part * all.bytes, part, omp_get_num_threads());
    }
  } else
#endif
    run_share(all, (char*)memory, 0, 1);
  for (int64_t s = 0; s < all.sum_count; ++s)
    for (int64_t j = 0; j < all.sums[s].width; ++j) {
      double sum = 0;
      for (int part = 0; part < parts; ++part) sum += ((double*)((char*)memory + part * all.bytes + all.sums[s].total))[j];
      all.sums[s].target[j] = (real)sum;
    }
}
