// Batch normalization of blocked images, channel by channel: statistics and their gradients are summed in double
// precision, and a channel is written while it is still in the cache.
namespace {

// target = (source - mean) * rstd * weight + bias, rectified or not; of_batch: with this batch's statistics, which the
// running ones follow if there are any. numbers: the variance's epsilon, and by how much the running ones follow.
void norm(const real* source, real* target, const real* weight, const real* bias, real* running_mean,
          real* running_variance, const double* numbers, double* means, double* rstds, int64_t channels, int64_t blocks,
          int64_t pixels, int64_t lanes, int of_batch, int relu, int threads) {
  for_planes(channels, threads, [&](int64_t c) {
    const Channel channel{c, channels, blocks, pixels, lanes};
    double mean, variance;
    if (of_batch) {
      mean = channel.sum([&](int64_t i) { return load<V>(source + i); }) / channel.count();
      const V centre = splat<V>((real)mean);
      const double off = mean - (double)(real)mean;
      const double squares = channel.sum([&](int64_t i) {
        const V x = load<V>(source + i) - centre;
        return x * x;
      });
      variance = squares / channel.count() - off * off;
      if (running_mean != nullptr) {
        const double part = numbers[1], unbiased = variance * (channel.count() / (channel.count() - 1));
        running_mean[c] = (real)((1 - part) * running_mean[c] + part * mean);
        running_variance[c] = (real)((1 - part) * running_variance[c] + part * unbiased);
      }
    } else {
      mean = running_mean[c], variance = running_variance[c];
    }
    const double rstd = 1 / __builtin_sqrt(variance + numbers[0]);
    means[c] = mean, rstds[c] = rstd;
    const double scale = weight == nullptr ? rstd : rstd * weight[c];
    const V a = splat<V>((real)scale), b = splat<V>((real)((bias == nullptr ? 0 : bias[c]) - mean * scale));
    channel.visit([&](int64_t at, Int<V>) {
      for (int64_t i = at; i < at + pixels * L; i += L) {
        const V y = load<V>(source + i) * a + b;
        store(target + i, relu ? rectified(y) : y);
      }
    });
  });
}

// From the cotangent g: target, that of the input, zero in lanes without a sample; to_weight and to_bias. Each may be
// null.
void norm_backward(const real* g, const real* x, const real* weight, const double* means, const double* rstds,
                   real* target, real* to_weight, real* to_bias, int64_t channels, int64_t blocks, int64_t pixels,
                   int64_t lanes, int of_batch, int threads) {
  for_planes(channels, threads, [&](int64_t c) {
    const Channel channel{c, channels, blocks, pixels, lanes};
    const V centre = splat<V>((real)means[c]);
    double plain = 0, weighted = 0;  // sums of g, and of g (x - mean)
    if (of_batch || to_weight != nullptr || to_bias != nullptr) {
      channel.visit([&](int64_t at, Int<V> mask) {
        V sums[2] = {}, products[2] = {};
        for (int64_t i = 0; i < pixels; ++i) {
          const V given = load<V>(g + at + i * L);
          sums[i & 1] += given, products[i & 1] += given * (load<V>(x + at + i * L) - centre);
        }
        plain += ::sum(mask ? sums[0] + sums[1] : V{}), weighted += ::sum(mask ? products[0] + products[1] : V{});
      });
    }
    if (to_weight != nullptr) to_weight[c] = (real)(weighted * rstds[c]);
    if (to_bias != nullptr) to_bias[c] = (real)plain;
    if (target == nullptr) return;
    const double scale = weight == nullptr ? rstds[c] : rstds[c] * weight[c];
    const double slope = of_batch ? -scale * rstds[c] * rstds[c] * weighted / channel.count() : 0;
    const double offset = of_batch ? -scale * plain / channel.count() : 0;
    channel.visit([&](int64_t at, Int<V> mask) {
      for (int64_t i = at; i < at + pixels * L; i += L) {
        const V y = load<V>(g + i) * (real)scale + (load<V>(x + i) - centre) * (real)slope + (real)offset;
        store(target + i, mask ? y : V{});
      }
    });
  });
}

}  // namespace

ENTRY(norm, norm)
ENTRY(norm_backward, norm_backward)
