// The sweep itself: the time loop of one thread over its share, and the C entry points. `Kernel` is the printed part.
namespace {

// All steps of the rows in `share`. Where columns of a matrix share a sample, these are the columns of one.
void sweep(const Kernel& kernel, const Call& call, typename Kernel::Thread& thread, Share share, int thread_index) {
  const bool ascending = Kernel::ALONG != call.reverse;
  const int64_t end = share.end, sample = share.begin / call.columns;
  kernel.bind(thread.cursor, call, ascending ? 0 : call.steps - 1, ascending ? 1 : -1);
  if (call.columns > 1) kernel.hold(thread.cursor, sample, (thread_index - sample) * call.columns);
  int64_t unflushed = 0;
  for (int64_t i = 0; i < call.steps; ++i, thread.cursor.advance()) {
    const int64_t t = ascending ? i : call.steps - 1 - i;
    const int64_t active = call.active == nullptr ? call.rows : call.active[t] * call.columns;
    share.end = active < end ? active : end;
    if (share.end <= share.begin) continue;
    if (!kernel.step(thread, share)) break;
    if (Kernel::SUMS > 0 && (unflushed += share.end - share.begin) >= FLUSH_ROWS) {
      for (auto& sum : thread.sums) sum.flush();
      unflushed = 0;
    }
  }
}

void run(const Kernel& kernel, const Call& call, int thread_index, Share share) {
  typename Kernel::Thread thread;
  for (int i = 0; i < Kernel::SUMS; ++i) {
    thread.sums[i] = kernel.sums[i].of(thread_index);
    thread.sums[i].clear();
  }
  if (call.columns == 1) {
    sweep(kernel, call, thread, share, thread_index);
  } else {
    for (int64_t row = share.begin; row < share.end; row += call.columns)
      sweep(kernel, call, thread, {row, row + call.columns, 0, 1}, thread_index);
  }
  for (auto& sum : thread.sums) sum.flush();
}

Share share_of(const Call& call, int part, int parts, bool split) {
  if (split) return {0, call.rows, part, parts};
  const auto first = [&](int i) {
    return first_row(i, parts, call.rows / call.columns, call.steps, call.active) * call.columns;
  };
  return {first(part), first(part + 1), 0, 1};
}

}  // namespace

// Bytes that `bppsa_sweep` needs as its workspace. rows: that are worked on at once, of columns one sample's a thread.
extern "C" int64_t bppsa_workspace(const int64_t* dims, int64_t rows, int threads) {
  Arena arena(nullptr);
  Kernel(dims, nullptr).place(arena, rows, threads);
  return arena.used() + 64;
}

// pointers, first_strides, second_strides: of each argument of the kernel. rows: of what is carried along, of which so
// many `columns` share a row of everything else. active: null, or the rows of the latter that take part in each step. split: threads share the columns of all rows, else each has rows of its own. Neither allocates nor throws.
extern "C" void bppsa_sweep(void** pointers, const int64_t* first_strides, const int64_t* second_strides,
                            const int64_t* dims, int64_t steps, int64_t rows, int64_t columns,
                            const int64_t* active, int reverse, int threads, int split, void* workspace) {
  const Call call{pointers, first_strides, second_strides, steps, rows, columns, active, reverse != 0};
  Arena arena((void*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63));
  Barrier barrier;
  Kernel kernel(dims, &barrier);
  kernel.place(arena, columns > 1 ? threads * columns : rows, threads);
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const int part = omp_get_thread_num(), parts = omp_get_num_threads();
      kernel.pack(call, part, parts);
#pragma omp barrier
      run(kernel, call, part, share_of(call, part, parts, split != 0));
#pragma omp barrier
      if (part == 0) kernel.reduce(call, parts);
    }
    return;
  }
#endif
  kernel.pack(call, 0, 1);
  run(kernel, call, 0, share_of(call, 0, 1, false));
  kernel.reduce(call, 1);
}
