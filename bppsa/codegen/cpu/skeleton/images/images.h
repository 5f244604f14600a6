// What stands between convolutions, on blocked images: layout, pooling, sums. A plane is one channel of one block. Sizes are run-time numbers: memory, not arithmetic, takes the time here.
namespace {

// f(plane) for all of them, shared by the threads.
template <class F>
void for_planes(int64_t planes, int threads, F f) {
  in_parallel(threads, [&](int part, int parts) {
    const Range own = share(planes, part, parts);
    for (int64_t plane = own.begin; plane < own.end; ++plane) f(plane);
  });
}

// What a window of pooling looks at: kernel, stride, padding and dilation as in torch.
struct Window {
  int64_t height, width, rows, columns;                                     // of the image, of what comes out
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  // Quarters of the image, as most networks pool: no window meets another, or the border.
  bool quarters() const {
    const auto is = [](const int64_t* pair, int64_t value) { return pair[0] == value && pair[1] == value; };
    return is(kernel, 2) && is(stride, 2) && is(padding, 0) && is(dilation, 1);
  }
  // All pixels are in some quarter.
  bool complete() const { return quarters() && height % 2 == 0 && width % 2 == 0; }
  // f(pixel, place in the kernel) for the window's pixels inside the image
  template <bool QUARTERS, class F>
  INLINE void visit(int64_t row, int64_t column, F f) const {
    if constexpr (QUARTERS) {
      const int64_t pixel = 2 * (row * width + column);
      f(pixel, 0), f(pixel + 1, 1), f(pixel + width, 2), f(pixel + width + 1, 3);
      return;
    }
    for (int64_t i = 0; i < kernel[0]; ++i) {
      const int64_t y = row * stride[0] - padding[0] + i * dilation[0];
      if (y < 0 || y >= height) continue;
      for (int64_t j = 0; j < kernel[1]; ++j) {
        const int64_t x = column * stride[1] - padding[1] + j * dilation[1];
        if (x >= 0 && x < width) f(y * width + x, i * kernel[1] + j);
      }
    }
  }
};

// The lanes of a block that hold samples.
INLINE Int<V> held(int64_t lanes) {
  Int<V> mask;
  for (int64_t i = 0; i < L; ++i) mask[i] = -(integer)(i < lanes);
  return mask;
}

// All planes of one channel, block by block, with the lanes that hold samples.
struct Channel {
  int64_t channel, channels, blocks, pixels, lanes;
  template <class F>
  INLINE void visit(F f) const {
    for (int64_t b = 0; b < blocks; ++b) {
      const Int<V> mask = held(b + 1 < blocks ? L : lanes);
      f((b * channels + channel) * pixels * L, mask);
    }
  }
  // The sum of f(index) over pixels and samples; plane by plane in single precision, those in double.
  template <class F>
  INLINE double sum(F f) const {
    double total = 0;
    visit([&](int64_t at, Int<V> mask) {
      V chains[2] = {};
      for (int64_t i = 0; i < pixels; ++i) chains[i & 1] += f(at + i * L);
      total += ::sum(mask ? chains[0] + chains[1] : V{});
    });
    return total;
  }
  double count() const { return (double)pixels * ((blocks - 1) * L + lanes); }
};

// Lane j of vector i becomes lane i of vector j: blocks of half the size change sides, then those within them.
template <int HALF = L / 2>
INLINE void transpose(V* rows) {
  if constexpr (HALF > 0) {
    Int<V> low, high;
    UNROLL for (int i = 0; i < L; ++i) {
      const bool second = i & HALF;
      low[i] = second ? L + i - HALF : i, high[i] = second ? L + i : i + HALF;
    }
    UNROLL for (int i = 0; i < L; ++i) {
      if (i & HALF) continue;
      const V a = rows[i], b = rows[i + HALF];
      rows[i] = __builtin_shuffle(a, b, low), rows[i + HALF] = __builtin_shuffle(a, b, high);
    }
    transpose<HALF / 2>(rows);
  }
}

INLINE V first(const real* from, int64_t count) {
  V v{};
  std::memcpy(&v, from, count * sizeof(real));
  return v;
}

// f(block, its samples, column, columns) for squares of a matrix [samples, columns], L or fewer of both.
template <class F>
void for_squares(int64_t samples, int64_t columns, int threads, F f) {
  const int64_t across = ceil_div(columns, L);
  for_planes(ceil_div(samples, L) * across, threads, [&](int64_t square) {
    const int64_t block = square / across, column = square % across * L;
    f(block, std::min(L, samples - block * L), column, std::min(L, columns - column));
  });
}

// image: [samples, channels, pixels] -> blocked. Lanes without a sample repeat the last one, or are zero.
void pack(const real* image, real* blocked, int64_t samples, int64_t channels, int64_t pixels, int repeat, int threads) {
  const int64_t columns = channels * pixels;
  for_squares(samples, columns, threads, [&](int64_t block, int64_t held, int64_t column, int64_t count) {
    V rows[L];
    for (int64_t i = 0; i < L; ++i) {
      const real* from = image + (block * L + std::min(i, held - 1)) * columns + column;
      rows[i] = i >= held && !repeat ? V{} : count == L ? load<V>(from) : first(from, count);
    }
    transpose(rows);
    for (int64_t i = 0; i < count; ++i) store(blocked + (block * columns + column + i) * L, rows[i]);
  });
}

void unpack(const real* blocked, real* image, int64_t samples, int64_t channels, int64_t pixels, int threads) {
  const int64_t columns = channels * pixels;
  for_squares(samples, columns, threads, [&](int64_t block, int64_t held, int64_t column, int64_t count) {
    V rows[L];
    for (int64_t i = 0; i < L; ++i)
      rows[i] = i < count ? load<V>(blocked + (block * columns + column + i) * L) : V{};
    transpose(rows);
    for (int64_t i = 0; i < held; ++i) {
      real* to = image + (block * L + i) * columns + column;
      if (count == L) store(to, rows[i]);
      else std::memcpy(to, &rows[i], count * sizeof(real));
    }
  });
}

// target = a + b, rectified or not; b may be null. count: of reals
void add(const real* a, const real* b, real* target, int64_t count, int relu, int threads) {
  for_planes(count / L, threads, [&](int64_t i) {
    const V sum = b == nullptr ? load<V>(a + i * L) : load<V>(a + i * L) + load<V>(b + i * L);
    store(target + i * L, relu ? rectified(sum) : sum);
  });
}

// target = (a + b) where `kept` is not zero; b and kept may be null.
void join(const real* a, const real* b, const real* kept, real* target, int64_t count, int threads) {
  for_planes(count / L, threads, [&](int64_t i) {
    V sum = load<V>(a + i * L);
    if (b != nullptr) sum += load<V>(b + i * L);
    store(target + i * L, kept == nullptr ? sum : passed(sum, load<V>(kept + i * L)));
  });
}

template <bool QUARTERS>
void maxima(const Window& w, const real* source, real* target, Byte* places, int64_t planes, int threads) {
  for_planes(planes, threads, [&](int64_t plane) {
    const real* from = source + plane * w.height * w.width * L;
    for (int64_t row = 0, at = plane * w.rows * w.columns * L; row < w.rows; ++row) {
      for (int64_t column = 0; column < w.columns; ++column, at += L) {
        Maximum best;
        w.visit<QUARTERS>(row, column, [&](int64_t pixel, int64_t k) { best.see(load<V>(from + pixel * L), k); });
        store(target + at, best.value);
        if (places != nullptr) store_places(places + at, best.place);
      }
    }
  });
}

template <bool QUARTERS>
void maxima_backward(const Window& w, const real* source, real* target, const Byte* places, const real* kept,
                       int64_t planes, int threads) {
  const bool complete = w.complete();
  for_planes(planes, threads, [&](int64_t plane) {
    real* to = target + plane * w.height * w.width * L;
    if (!complete) std::memset(to, 0, w.height * w.width * L * sizeof(real));
    for (int64_t row = 0, at = plane * w.rows * w.columns * L; row < w.rows; ++row) {
      for (int64_t column = 0; column < w.columns; ++column, at += L) {
        const Int<V> place = load_places(places + at);
        V g = load<V>(source + at);
        if (kept != nullptr) g = passed(g, load<V>(kept + at));
        w.visit<QUARTERS>(row, column, [&](int64_t pixel, int64_t k) {
          const V part = place == (integer)k ? g : V{};
          store(to + pixel * L, QUARTERS ? part : load<V>(to + pixel * L) + part);
        });
      }
    }
  });
}

// places: of each output pixel and sample, where in the window its maximum was found; null: nobody will ask.
void max_pool(const real* source, real* target, Byte* places, const int64_t* window, int64_t planes,
                               int threads) {
  const Window& w = *(const Window*)window;
  (w.quarters() ? maxima<true> : maxima<false>)(w, source, target, places, planes, threads);
}

// kept: null, or the forward's target where its source was rectified
void max_pool_backward(const real* source, real* target, const Byte* places, const real* kept,
                                        const int64_t* window, int64_t planes, int threads) {
  const Window& w = *(const Window*)window;
  (w.quarters() ? maxima_backward<true> : maxima_backward<false>)(w, source, target, places, kept, planes, threads);
}

// Means over windows: output row i is the mean over source rows [bounds[2 i], bounds[2 i + 1]), and so for columns,
// whose bounds follow; shares: by which each row's and each column's sum is multiplied. transposed: its J^T instead.
void mean_pool(const real* source, real* target, const int64_t* bounds, const real* shares,
                                const int64_t* sizes, int64_t planes, int transposed, int threads) {
  const int64_t height = sizes[0], width = sizes[1], rows = sizes[2], columns = sizes[3];
  const int64_t* across = bounds + 2 * rows;
  for_planes(planes, threads, [&](int64_t plane) {
    const int64_t big = plane * height * width * L, small = plane * rows * columns * L;
    if (transposed) std::memset(target + big, 0, height * width * L * sizeof(real));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const real share = shares[i] * shares[rows + j];
        const int64_t at = small + (i * columns + j) * L;
        const V g = transposed ? load<V>(source + at) * share : V{};
        V total = {};
        for (int64_t y = bounds[2 * i]; y < bounds[2 * i + 1]; ++y) {
          for (int64_t x = across[2 * j]; x < across[2 * j + 1]; ++x) {
            const int64_t pixel = big + (y * width + x) * L;
            if (transposed) store(target + pixel, load<V>(target + pixel) + g);
            else total += load<V>(source + pixel);
          }
        }
        if (!transposed) store(target + at, total * share);
      }
    }
  });
}

// By channel: the sum of g over pixels and samples, the gradient of a bias.
void channel_sums(const real* g, real* sums, int64_t channels, int64_t blocks, int64_t pixels,
                                   int threads) {
  for_planes(channels, threads, [&](int64_t c) {
    sums[c] = Channel{c, channels, blocks, pixels, L}.sum([&](int64_t i) { return load<V>(g + i); });
  });
}

}  // namespace

ENTRY(pack, pack)
ENTRY(unpack, unpack)
ENTRY(add, add)
ENTRY(join, join)
ENTRY(max_pool, max_pool)
ENTRY(max_pool_backward, max_pool_backward)
ENTRY(mean_pool, mean_pool)
ENTRY(channel_sums, channel_sums)
