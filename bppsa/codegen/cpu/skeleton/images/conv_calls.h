// The entry points of one convolution. Images are blocked, `at`, `offsets` and `values` as in Rows; nothing is allocated.
// source_plane, target_plane: reals of one channel of a block; rows, channels: of the target and the source.
namespace {

Image image(const real* data, int64_t channels, int64_t plane, const Byte* winners = nullptr) {
  return {(real*)data, plane, channels * plane, (Byte*)winners};
}

// Entry rank[n], or n where rank is null, takes the value that weight[places[n]] has now.
void gather(real* values, const int32_t* places, const int32_t* rank, const real* weight, int64_t count, int threads) {
  const Walk walk{places, rank};
  in_parallel(threads, [&](int part, int parts) {
    const Range own = share(count, part, parts);
    for (int64_t n = own.begin; n < own.end; ++n) values[walk.entry(n)] = weight[places[n]];
  });
}

// Entry n takes the value of entry order[n] of another order.
void reorder(real* values, const int32_t* order, const real* others, int64_t count, int threads) {
  in_parallel(threads, [&](int part, int parts) {
    const Range own = share(count, part, parts);
    for (int64_t n = own.begin; n < own.end; ++n) {
      __builtin_prefetch(others + order[std::min(n + AHEAD, own.end - 1)]);
      values[n] = others[order[n]];
    }
  });
}

// winners: null, or where the target is pooled. bias: null, or a number for each row. relu: whether it is rectified.
void forward(const real* source, real* target, Byte* winners, const int32_t* at, const int32_t* offsets,
             const real* values, const real* bias, int64_t rows, int64_t chunks, int64_t channels, int64_t source_plane,
             int64_t target_plane, int64_t blocks, int relu, int threads) {
  const Image from = image(source, channels, source_plane), to = image(target, rows, target_plane, winners);
  const Rows matrix{at, offsets, values, rows, chunks, Forward::TAPS};
  sweep<Forward>(matrix, from, to, blocks, threads, [=](int64_t row, auto write) {
    const auto biased = [=](V x) { return bias == nullptr ? x : x + bias[row]; };
    if (relu) write([=](V x, int64_t) { return rectified(biased(x)); });
    else write([=](V x, int64_t) { return biased(x); });
  });
}

// kept: null, or the input of the forward where it was rectified: nothing passes where that is zero.
void backward(const real* source, real* target, const int32_t* at, const int32_t* offsets, const real* values,
              const real* kept, int64_t rows, int64_t chunks, int64_t channels, int64_t source_plane, int64_t target_plane,
              int64_t blocks, int threads) {
  const Image from = image(source, channels, source_plane), to = image(target, rows, target_plane);
  const Rows matrix{at, offsets, values, rows, chunks, Backward::TAPS};
  sweep<Backward>(matrix, from, to, blocks, threads, [=](int64_t, auto write) {
    if (kept != nullptr) write([=](V x, int64_t i) { return passed(x, load<V>(kept + i)); });
    else write([](V x, int64_t) { return x; });
  });
}

// From the forward's source and its target's gradient those of the weight: [rows, row_size], at places[n] that of entry
// rank[n], or n, and zero everywhere else; where `compact`, one after the other those of places alone. And of the bias,
// unless that is null. winners: the forward's where it pooled its target. workspace: bppsa_weights_room for each thread
void weights(const real* source, const real* target, const Byte* winners, const int32_t* at, const int32_t* offsets,
             const int32_t* places, const int32_t* rank, real* weight, real* bias, int64_t row_size, int64_t rows,
             int64_t chunks, int64_t channels, int64_t source_plane, int64_t target_plane, int64_t blocks, int compact,
             int threads, V* workspace) {
  const Image from = image(source, channels, source_plane), to = image(target, rows, target_plane, winners);
  const Rows matrix{at, offsets, nullptr, rows, chunks, Forward::TAPS};
  products<Forward>(matrix, from, to, blocks, threads, {weight, {places, rank}, row_size, bias, compact != 0}, workspace);
}

}  // namespace

ENTRY(gather, gather)
ENTRY(reorder, reorder)
ENTRY(forward, forward)
ENTRY(backward, backward)
ENTRY(weights, weights)

// reals
extern "C" int64_t bppsa_weights_room(int64_t row_size) { return Workspace::vectors(row_size) * L; }
