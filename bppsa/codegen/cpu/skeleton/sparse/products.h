// Numeric phases over CSR patterns: C = A B by a product plan, J^T g, and J^T with its rows or columns scaled.
// Values of one sample lie side by side; or, as lanes, those of SAMPLES samples for each entry, and indices are read
// once for all of these. Every number of a result is summed by one thread in one order.
#include <vector>

namespace {

constexpr int64_t SAMPLES = 64 / sizeof(real);
constexpr int64_t STREAMED_BYTES = 16 << 20;  // of a result: more is not in the cache when it is read
using Lane = Vec<SAMPLES>;

struct Csr {
  const int64_t* rows;
  const int32_t* columns;
};

template <class V>
INLINE V get(const real* at) {
  if constexpr (std::is_same_v<V, real>) return *at;
  else return load<V>(at);
}
template <class V>
INLINE void put(real* at, V v) {
  if constexpr (std::is_same_v<V, real>) *at = v;
  else store(at, v);
}
template <class V>
INLINE void clear(real* at, int64_t pitch, int64_t count) {
  for (int64_t j = 0; j < count; ++j) put(at + j * pitch, V{});
}

// Values of entries: one number for all samples, or a vector of lanes `pitch` numbers after the one before.
template <class V>
struct Values {
  const real* at;
  int64_t pitch;
  INLINE V operator[](int64_t entry) const {
    return get<V>(at + entry * pitch);
  }
};

struct Plan {
  Csr a, b, c;
  const int64_t* starts;  // [n + 1], the products before those of each row
  const int32_t* slots;   // of each product in its row of C; null: columns are looked up
  int64_t n, m;
};

// Past the caches, where what is written is not read soon: the line that it replaces need not be fetched first.
INLINE void stream(real* at, Lane v) {
  WIDE && ((uintptr_t)at & 63) == 0 ? copy_line((const real*)&v, at) : store(at, v);
}

// f(begin, end, thread) on each thread, for rows with about as much work each; ends: the work up to each row.
template <class F>
void split(const int64_t* ends, int64_t n, int threads, F f) {
  const auto first = [&](int64_t part) { return std::lower_bound(ends, ends + n, ends[n] * part / threads) - ends; };
  const auto run = [&](int part) { f(part == 0 ? 0 : first(part), part + 1 == threads ? n : first(part + 1)); };
  if (threads == 1) return run(0);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) run(part);
}

// Row i of C through its slots. A and B: numbers or lanes, of which C has what the wider has.
template <class A, class B>
INLINE void by_slots(const Plan& plan, int64_t i, Values<A> a, Values<B> b, real* c, int64_t pitch) {
  using C = std::conditional_t<std::is_same_v<A, real>, B, A>;
  clear<C>(c, pitch, plan.c.rows[i + 1] - plan.c.rows[i]);
  const int32_t* slot = plan.slots + plan.starts[i];
  for (int64_t e = plan.a.rows[i]; e < plan.a.rows[i + 1]; ++e) {
    const int64_t k = plan.a.columns[e], begin = plan.b.rows[k], end = plan.b.rows[k + 1];
    const A left = a[e];
    for (int64_t p = begin; p < end; ++p) {
      real* at = c + *slot++ * pitch;
      put(at, get<C>(at) + left * b[p]);
    }
  }
}

// The same through a whole row of m numbers, which is zero before and after.
INLINE void by_columns(const Plan& plan, int64_t i, const real* a, const real* b, real* c, real* row) {
  for (int64_t e = plan.a.rows[i]; e < plan.a.rows[i + 1]; ++e) {
    const int64_t k = plan.a.columns[e], begin = plan.b.rows[k], end = plan.b.rows[k + 1];
    const real left = a[e];
    for (int64_t p = begin; p < end; ++p) row[plan.b.columns[p]] += left * b[p];
  }
  for (int64_t j = plan.c.rows[i]; j < plan.c.rows[i + 1]; ++j) {
    const int32_t column = plan.c.columns[j];
    *c++ = row[column], row[column] = 0;
  }
}

// C in lanes by tiles of its columns. Those of a row are met in order.
struct Tiles {
  const Plan& plan;
  int64_t k, width, count;
  std::vector<int64_t> bounds;  // [count + 1, k]: where the entries of each tile begin in each row of B
  std::vector<int64_t> next;    // [n]: the first entry of each row of C that no tile had yet
  std::vector<int32_t> place;   // of each column among those of a row's tile; used where there are no slots
  std::vector<real> sums;       // of a row's tile, before they are written
  bool streams;

  // width: columns of a tile; k: rows of B.
  Tiles(const Plan& plan, int64_t k, int64_t width)
      : plan(plan), k(k), width(width), count(ceil_div(plan.m, width)), bounds((count + 1) * k),
        place(plan.slots ? 0 : plan.m), sums((width + 1) * SAMPLES),
        streams(plan.c.rows[plan.n] * (int64_t)sizeof(Lane) > STREAMED_BYTES) {
    for (int64_t row = 0; row < k; ++row) {
      const int32_t *from = plan.b.columns + plan.b.rows[row], *end = plan.b.columns + plan.b.rows[row + 1];
      for (int64_t t = 0; t < count; ++t) {
        if (t > 0) from = std::lower_bound(from, end, t * width);
        bounds[t * k + row] = from - plan.b.columns;
      }
      bounds[count * k + row] = plan.b.rows[row + 1];
    }
  }

  void restart() { next.assign(plan.c.rows, plan.c.rows + plan.n); }

  // Row i of tile t. c: where the values of all entries begin.
  template <class A, class B>
  INLINE void row(int64_t t, int64_t i, Values<A> a, Values<B> b, real* c, int64_t pitch) {
    using C = std::conditional_t<std::is_same_v<A, real>, B, A>;
    const int32_t* columns = plan.c.columns;
    const int64_t first = next[i];
    const int64_t last = std::lower_bound(columns + first, columns + plan.c.rows[i + 1], (t + 1) * width) - columns;
    next[i] = last;
    real* to = (real*)(((uintptr_t)sums.data() + 63) & ~(uintptr_t)63);
    clear<C>(to, SAMPLES, last - first);
    for (int64_t j = first; plan.slots == nullptr && j < last; ++j) place[columns[j]] = j - first;
    const int64_t before = first - plan.c.rows[i];
    const int32_t* slot = plan.slots + plan.starts[i];
    for (int64_t e = plan.a.rows[i]; e < plan.a.rows[i + 1]; ++e) {
      const int64_t from = plan.a.columns[e], start = plan.b.rows[from];
      const int64_t begin = bounds[t * k + from], end = bounds[(t + 1) * k + from];
      const A left = a[e];
      for (int64_t p = begin; p < end; ++p) {
        real* at = to + (plan.slots ? slot[p - start] - before : place[plan.b.columns[p]]) * SAMPLES;
        put(at, get<C>(at) + left * b[p]);
      }
      slot += plan.b.rows[from + 1] - start;
    }
    if (streams) {
      for (int64_t j = first; j < last; ++j) stream(c + j * pitch, load<Lane>(to + (j - first) * SAMPLES));
    } else {
      for (int64_t j = first; j < last; ++j) store(c + j * pitch, load<Lane>(to + (j - first) * SAMPLES));
    }
  }
};

// Row i of J^T times g: terms are added in several sums, or each addition would wait for the one before.
#if WIDE
INLINE real dot(const Csr& j, int64_t i, const real* values, const real* g) {
  Lane total{};
  for (int64_t e = j.rows[i], end = j.rows[i + 1]; e < end; e += SAMPLES) {
    const uint32_t some = end - e >= SAMPLES ? (1u << SAMPLES) - 1 : (1u << (end - e)) - 1;
    const auto inside = Tail<Lane>::of(some);
    total += inside.load(values + e) * inside.gather(g, j.columns + e);
  }
  return sum(total);
}
#else
INLINE real dot(const Csr& j, int64_t i, const real* values, const real* g) {
  const int32_t* column = j.columns;
  int64_t e = j.rows[i];
  const int64_t end = j.rows[i + 1];
  real s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (; e + 4 <= end; e += 4) {
    s0 += values[e] * g[column[e]], s1 += values[e + 1] * g[column[e + 1]];
    s2 += values[e + 2] * g[column[e + 2]], s3 += values[e + 3] * g[column[e + 3]];
  }
  for (; e < end; ++e) s0 += values[e] * g[column[e]];
  return (s0 + s1) + (s2 + s3);
}
#endif

// Row i of J^T times T vectors of lanes of g.
template <int T, class V>
INLINE void rows_of_lanes(const Csr& j, int64_t i, Values<V> values, const real* g, int64_t pitch, real* out) {
  Lane sums[T] = {};
  for (int64_t e = j.rows[i]; e < j.rows[i + 1]; ++e) {
    const real* from = g + j.columns[e] * pitch;
    UNROLL for (int t = 0; t < T; ++t) sums[t] += Values<V>{values.at + t * SAMPLES, values.pitch}[e] * load<Lane>(from + t * SAMPLES);
  }
  UNROLL for (int t = 0; t < T; ++t) store(out + t * SAMPLES, sums[t]);
}

// select: where d is zero so is the result, whatever the value is.
template <bool SELECT, class C, class D>
INLINE C factor(D d, C product) {
  if constexpr (!SELECT) return product;
  else return d != 0 ? product : C{};
}

template <bool ROWS, bool SELECT, class V, class D>
INLINE void scale(const Csr& j, int64_t begin, int64_t end, Values<V> values, Values<D> d, real* __restrict out,
                  int64_t pitch) {
  using C = std::conditional_t<std::is_same_v<V, real>, D, V>;
  if constexpr (ROWS) {
    for (int64_t i = begin; i < end; ++i) {
      const D by = d[i];
      for (int64_t e = j.rows[i]; e < j.rows[i + 1]; ++e) put(out + e * pitch, factor<SELECT, C>(by, C(values[e] * by)));
    }
  } else {
    const int32_t* __restrict column = j.columns;
    for (int64_t e = j.rows[begin]; e < j.rows[end]; ++e) {
      const D by = d[column[e]];
      put(out + e * pitch, factor<SELECT, C>(by, C(values[e] * by)));
    }
  }
}

// f(by_rows, select), both constants.
template <class F>
void with_flags(int by_rows, int select, F f) {
  const std::true_type yes;
  const std::false_type no;
  if (by_rows) select ? f(yes, yes) : f(yes, no);
  else select ? f(no, yes) : f(no, no);
}

}  // namespace

// One sample after the other: a and b of each are `a_step` and `b_step` numbers after those of the one before.
extern "C" void bppsa_multiply(const Plan* plan, const real* a, int64_t a_step, const real* b, int64_t b_step, real* c,
                               int64_t c_step, int64_t samples, int threads) {
  split(plan->starts, plan->n, threads, [&](int64_t begin, int64_t end) {
    std::vector<real> row(plan->slots == nullptr ? plan->m : 0);
    for (int64_t s = 0; s < samples; ++s) {
      const real *left = a + s * a_step, *right = b + s * b_step;
      for (int64_t i = begin; i < end; ++i) {
        real* to = c + s * c_step + plan->c.rows[i];
        if (plan->slots == nullptr) by_columns(*plan, i, left, right, to, row.data());
        else by_slots(*plan, i, Values<real>{left, 1}, Values<real>{right, 1}, to, 1);
      }
    }
  });
}

// Blocks of SAMPLES lanes. A pitch of 0: the batch shares these values. k: rows of B. tile: columns of C at a time.
// by_tiles: all rows of a tile, then of the next, so that what they take of B stays in the cache; else row by row.
extern "C" void bppsa_multiply_lanes(const Plan* plan, const real* a, int64_t a_pitch, const real* b, int64_t b_pitch,
                                     real* c, int64_t c_pitch, int64_t samples, int threads, int64_t k, int64_t tile,
                                     int by_tiles) {
  split(plan->starts, plan->n, threads, [&](int64_t begin, int64_t end) {
    Tiles tiles(*plan, k, tile);
    for (int64_t s = 0; s < samples; s += SAMPLES) {
      const Values<Lane> left{a + s, a_pitch}, right{b + s, b_pitch};
      const auto run = [&](auto l, auto r) {
        tiles.restart();
        const auto part = [&](int64_t t, int64_t i) { tiles.row(t, i, l, r, c + s, c_pitch); };
        if (by_tiles) {
          for (int64_t t = 0; t < tiles.count; ++t) for (int64_t i = begin; i < end; ++i) part(t, i);
        } else {
          for (int64_t i = begin; i < end; ++i) for (int64_t t = 0; t < tiles.count; ++t) part(t, i);
        }
        if (tiles.streams) std::atomic_thread_fence(std::memory_order_seq_cst);
      };
      if (a_pitch == 0) run(Values<real>{a, 1}, right);
      else if (b_pitch == 0) run(left, Values<real>{b, 1});
      else run(left, right);
    }
  });
}

// out = J^T g, one sample after the other. v_step 0: the batch shares the values.
extern "C" void bppsa_mv(const Csr* j, int64_t n, const real* values, int64_t v_step, const real* g, int64_t g_step,
                         real* out, int64_t out_step, int64_t samples, int threads) {
  split(j->rows, n, threads, [&](int64_t begin, int64_t end) {
    for (int64_t s = 0; s < samples; ++s) {
      const real *v = values + s * v_step, *from = g + s * g_step;
      for (int64_t i = begin; i < end; ++i) out[s * out_step + i] = dot(*j, i, v, from);
    }
  });
}

// The same in lanes, of g and out; v_pitch 0: the batch shares the values.
extern "C" void bppsa_mv_lanes(const Csr* j, int64_t n, const real* values, int64_t v_pitch, const real* g,
                               int64_t g_pitch, real* out, int64_t out_pitch, int64_t samples, int threads) {
  split(j->rows, n, threads, [&](int64_t begin, int64_t end) {
    for (int64_t s = 0; s < samples;) {
      const int64_t vectors = samples - s > 3 * SAMPLES ? 4 : 1;
      const auto run = [&](auto v, auto tile) {
        for (int64_t i = begin; i < end; ++i) rows_of_lanes<tile()>(*j, i, v, g + s, g_pitch, out + s + i * out_pitch);
      };
      const auto with = [&](auto v) {
        if (vectors == 4) run(v, std::integral_constant<int, 4>{});
        else run(v, std::integral_constant<int, 1>{});
      };
      if (v_pitch == 0) with(Values<real>{values, 1});
      else with(Values<Lane>{values + s, v_pitch});
      s += vectors * SAMPLES;
    }
  });
}

// out = values times d, [n] or [m], at the row or the column of each entry, one sample after the other.
extern "C" void bppsa_scale(const Csr* j, int64_t n, const real* values, int64_t v_step, const real* d, int64_t d_step,
                            real* out, int64_t out_step, int64_t samples, int threads, int by_rows, int select) {
  const auto run = [&](auto by_rows, auto select) {
    split(j->rows, n, threads, [&](int64_t begin, int64_t end) {
      for (int64_t s = 0; s < samples; ++s) {
        const Values<real> v{values + s * v_step, 1}, by{d + s * d_step, 1};
        scale<by_rows(), select()>(*j, begin, end, v, by, out + s * out_step, 1);
      }
    });
  };
  with_flags(by_rows, select, run);
}

// The same in lanes. A pitch of 0: the batch shares it.
extern "C" void bppsa_scale_lanes(const Csr* j, int64_t n, const real* values, int64_t v_pitch, const real* d,
                                  int64_t d_pitch, real* out, int64_t out_pitch, int64_t samples, int threads,
                                  int by_rows, int select) {
  const auto run = [&](auto by_rows, auto select) {
    split(j->rows, n, threads, [&](int64_t begin, int64_t end) {
      for (int64_t s = 0; s < samples; s += SAMPLES) {
        const Values<Lane> v{values + s, v_pitch}, by{d + s, d_pitch};
        real* to = out + s;
        if (v_pitch == 0) scale<by_rows(), select()>(*j, begin, end, Values<real>{values, 1}, by, to, out_pitch);
        else if (d_pitch == 0) scale<by_rows(), select()>(*j, begin, end, v, Values<real>{d, 1}, to, out_pitch);
        else scale<by_rows(), select()>(*j, begin, end, v, by, to, out_pitch);
      }
    });
  };
  with_flags(by_rows, select, run);
}
