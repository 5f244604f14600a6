// The sweep itself: the time loop of one thread over its rows, and the C entry points. `Kernel` is the printed part.
namespace {

void run_rows(const Kernel& kernel, const Call& call, int part, int parts) {
  const int64_t begin = first_row(part, parts, call.rows, call.steps, call.active);
  const int64_t end = first_row(part + 1, parts, call.rows, call.steps, call.active);
  typename Kernel::Thread thread;
  for (int i = 0; i < Kernel::SUMS; ++i) {
    thread.sums[i] = kernel.sums[i].of(part);
    thread.sums[i].clear();
  }
  const bool ascending = Kernel::ALONG != call.reverse;
  kernel.bind(thread.cursor, call, ascending ? 0 : call.steps - 1, ascending ? 1 : -1);
  int64_t unflushed = 0;
  for (int64_t i = 0; i < call.steps; ++i, thread.cursor.advance()) {
    const int64_t t = ascending ? i : call.steps - 1 - i;
    const int64_t stop = call.active != nullptr && call.active[t] < end ? call.active[t] : end;
    if (stop <= begin) continue;
    kernel.step(thread, begin, stop);
    if (Kernel::SUMS > 0 && (unflushed += stop - begin) >= FLUSH_ROWS) {
      for (auto& sum : thread.sums) sum.flush();
      unflushed = 0;
    }
  }
  for (auto& sum : thread.sums) sum.flush();
}

}  // namespace

extern "C" int64_t bppsa_workspace(const int64_t* dims, int64_t rows, int threads) {
  Arena arena(nullptr);
  Kernel(dims).place(arena, rows, threads);
  return arena.used() + 64;
}

extern "C" void bppsa_sweep(void** pointers, const int64_t* time_strides, const int64_t* row_strides, const int64_t* dims,
                            int64_t steps, int64_t rows, const int64_t* active, int reverse, int threads, void* workspace) {
  const Call call{pointers, time_strides, row_strides, steps, rows, active, reverse != 0};
  Arena arena((void*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63));
  Kernel kernel(dims);
  kernel.place(arena, rows, threads);
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const int part = omp_get_thread_num(), parts = omp_get_num_threads();
      kernel.pack(call, part, parts);
#pragma omp barrier
      run_rows(kernel, call, part, parts);
#pragma omp barrier
      if (part == 0) kernel.reduce(call, parts);
    }
    return;
  }
#endif
  kernel.pack(call, 0, 1);
  run_rows(kernel, call, 0, 1);
  kernel.reduce(call, 1);
}
