// A weight's kept entries as a vector: entry n belongs to place places[n], no two to one.
// target[places[n]] += factor * values[n]
extern "C" void bppsa_add_at(real* target, const int32_t* places, const real* values, double factor, int64_t count,
                             int threads) {
  in_parallel(threads, [&](int part, int parts) {
    const Range own = share(count, part, parts);
    for (int64_t n = own.begin; n < own.end; ++n) {
      __builtin_prefetch(target + places[std::min(n + AHEAD, own.end - 1)], 1);
      target[places[n]] += (real)factor * values[n];
    }
  });
}
