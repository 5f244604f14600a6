// Pointwise functions on vectors: a few units in the last place, NaN in gives NaN out, infinities are right, no libm.
namespace {

template <class V>
INLINE V select(Int<V> c, V a, V b) {
  return c ? a : b;
}

// Bounds that let NaN through: x86's min and max give their second operand then, and so do these.
template <class V>
INLINE V at_most(V x, real bound) {
  const V b = splat<V>(bound);
  INTRINSIC(V, min, b, x);
  return b < x ? b : x;
}

template <class V>
INLINE V at_least(V x, real bound) {
  const V b = splat<V>(bound);
  INTRINSIC(V, max, b, x);
  return b > x ? b : x;
}

template <class V>
INLINE V maximum(V a, V b) {
  return (a > b) | (a != a) ? a : b;
}

INLINE real larger(real a, real b) {
  return a > b || a != a ? a : b;
}

template <class V>
INLINE real largest(V v) {  // NaN if there is one
  real found = v[0];
  for (int i = 1; i < LANES<V>; ++i) found = larger(v[i], found);
  return found;
}

template <class V>
INLINE V minimum(V a, V b) {
  return (a < b) | (a != a) ? a : b;
}

template <class V>
INLINE V truth(Int<V> c) {
  return c ? splat<V>(1) : V{};
}

template <class V>
INLINE V absolute(V x) {
  return (V)((Int<V>)x & std::numeric_limits<integer>::max());
}

template <class V>
INLINE V square_root(V x) {
  INTRINSIC(V, sqrt, x);
  for (int i = 0; i < LANES<V>; ++i) x[i] = SINGLE ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
  return x;
}

constexpr int MANTISSA = SINGLE ? 23 : 52, BIAS = SINGLE ? 127 : 1023;
constexpr real MAGIC = SINGLE ? 12582912.0 : 6755399441055744.0;
constexpr real LOG2E = 1.44269504088896340736;
// ln(2) in two parts: the high one has trailing zeros, so that n * LN2_HIGH is exact
constexpr real LN2_HIGH = SINGLE ? 0.693359375 : 0.693147180369123816490;
constexpr real LN2_LOW = SINGLE ? -2.12194440e-4 : 1.90821492927058770002e-10;

// The integer next to x, as a vector of reals and of integers: adding 1.5 * 2^MANTISSA leaves it in the low bits.
template <class V>
struct Rounded {
  V value;
  Int<V> bits;
  INLINE explicit Rounded(V shifted) {
    const V magic = splat<V>(MAGIC);
    value = shifted - magic;
    bits = (Int<V>)shifted - (Int<V>)magic;
  }
};

// 2^n as a vector, -BIAS < n <= BIAS
template <class V>
INLINE V power_of_two(Int<V> n) {
  return (V)((n + BIAS) << MANTISSA);
}

// floor(log2 |x|), |n| < BIAS; 0 where x is subnormal or not finite
template <class V>
INLINE V exponent(V x) {
  const Int<V> biased = ((Int<V>)x >> MANTISSA) & (2 * BIAS + 1), n = biased - BIAS;
  const Int<V> kept = (biased == 0) | (biased == 2 * BIAS + 1) ? Int<V>{} : n;
  return __builtin_convertvector(kept > BIAS - 1 ? Int<V>{} + (BIAS - 1) : kept, V);
}

// x 2^n for a whole |n| < BIAS
template <class V>
INLINE V times_power_of_two(V x, V n) {
  return x * power_of_two<V>(__builtin_convertvector(n, Int<V>));
}

// e^r - 1, |r| <= ln(2)/2, by Chebyshev fits of (e^r - 1 - r) / r^2. Estrin's order: short chains matter most here.
template <class V>
INLINE V expm1_polynomial(V r) {
  const V r2 = r * r;
  V p;
  if constexpr (SINGLE) {
    const V low = real(1.66665696281e-1) * r + real(0.5), high = real(8.36438069329e-3) * r + real(4.16665465411e-2);
    p = (real(1.39276846166e-3) * r2 + high) * r2 + low;
  } else {
    const V a = real(1.6666666666666667624e-1) * r + real(0.5);
    const V b = real(8.3333333333295030954e-3) * r + real(4.1666666666616862268e-2);
    const V c = real(1.9841269865789785536e-4) * r + real(1.3888888920770122212e-3);
    const V d = real(2.7557264294679126278e-6) * r + real(2.4801515879478315969e-5);
    const V e = real(2.51023277236091451e-8) * r + real(2.7622614078619689474e-7);
    const V r4 = r2 * r2;
    p = (e * r4 + (d * r2 + c)) * r4 + (b * r2 + a);
  }
  return p * r2 + r;
}

// e^(SIGN x)
template <int SIGN, class V>
INLINE V exponential(V x) {
  constexpr real LOW = SINGLE ? -104 : -746, HIGH = SINGLE ? 89 : 710;
  const V y = SIGN > 0 ? at_least(at_most(x, HIGH), LOW) : -at_least(at_most(x, -LOW), -HIGH);
  const Rounded<V> n(y * LOG2E + MAGIC);
  const V p = expm1_polynomial((y - n.value * LN2_HIGH) - n.value * LN2_LOW) + real(1);
#if WIDE
  INTRINSIC(V, scalef, p, n.value);
#endif
  const Int<V> half = n.bits >> 1;  // two factors: results below the normal range, and 2^(BIAS+1)
  return p * power_of_two<V>(half) * power_of_two<V>(n.bits - half);
}

// tanh x = t / (t + 2), t = e^2x - 1: accurate also near 0. Beyond BOUND it is 1 to the last bit. One step of reduction
// is enough, as tanh hardly depends on r where n is large.
template <class V>
INLINE V hyperbolic_tangent(V x) {
  constexpr real BOUND = SINGLE ? 9.1 : 20;
  const V y = at_least(at_most(x, BOUND), -BOUND);
  const Rounded<V> n(y * (2 * LOG2E) + MAGIC);
  const V scale = power_of_two<V>(n.bits);
  const V t = scale * expm1_polynomial((y + y) - n.value * (LN2_HIGH + LN2_LOW)) + (scale - real(1));
  return t / (t + real(2));
}

template <class V>
INLINE V sigmoid(V x) {
  return real(1) / (exponential<-1>(x) + real(1));
}

// A quotient of polynomials in z, the highest powers' coefficients first.
template <int N, class V>
INLINE V quotient(const double (&top)[N], const double (&bottom)[N], V z) {
  V p = splat<V>(top[0]), q = splat<V>(bottom[0]);
  UNROLL for (int i = 1; i < N; ++i) p = p * z + real(top[i]), q = q * z + real(bottom[i]);
  return p / q;
}

// W. J. Cody, Rational Chebyshev approximation for the error function (1969): x R(x^2) near 0, else 1 - e^(-x^2) R(|x|).
template <class V>
INLINE V error_function(V x) {
  constexpr double NEAR_TOP[] = {1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
                                 3.77485237685302021e2, 3.20937758913846947e3};
  constexpr double NEAR_BOTTOM[] = {1, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
                                    2.84423683343917062e3};
  constexpr double FAR_TOP[] = {2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594,
                                6.61191906371416295e1,  2.98635138197400131e2,  8.81952221241769090e2,
                                1.71204761263407058e3,  2.05107837782607147e3,  1.23033935479799725e3};
  constexpr double FAR_BOTTOM[] = {1, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
                                   1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3,
                                   3.43936767414372164e3, 1.23033935480374942e3};
  const V y = at_most(absolute(x), 6);  // beyond, it is 1 to the last bit
  const V square = y * y, tail = exponential<-1>(square) * quotient(FAR_TOP, FAR_BOTTOM, y);
  const V far = real(1) - tail;
  return y < real(0.5) ? x * quotient(NEAR_TOP, NEAR_BOTTOM, square) : x < 0 ? -far : far;
}

template <class V>
INLINE bool any(Int<V> c) {
  integer found = 0;
  for (int i = 0; i < LANES<V>; ++i) found |= c[i];
  return found != 0;
}

// Numbers of MANTISSA bits or more are whole, and what is not finite stays itself.
template <class V>
INLINE V floor_of(V x) {
  const V shift = splat<V>(real(integer(1) << MANTISSA)), size = absolute(x);
  const V whole = (size + shift) - shift;  // next to |x|
  const V below = whole > size ? whole - real(1) : whole;
  const V down = below < size ? below + real(1) : below;
  const V y = x < 0 ? -down : below;
  return size < shift ? (V)((Int<V>)y | ((Int<V>)x & (Int<V>)splat<V>(real(-0.0)))) : x;
}

// sin (QUADRANT 0) and cos (QUADRANT 1) by Cody and Waite's reduction, Cephes' and fdlibm's polynomials; beyond REACH
// one by one, by the C library.
template <int QUADRANT, class V>
INLINE V sine(V x) {
  constexpr real REACH = SINGLE ? 30000 : 1e6;
  const Rounded<V> n(at_least(at_most(x, REACH), -REACH) * real(0.63661977236758134308) + MAGIC);
  V r;
  if constexpr (SINGLE) {
    r = ((x - n.value * real(1.5703125)) - n.value * real(4.837512969970703125e-4)) - n.value * real(7.549789948768648e-8);
  } else {
    r = ((x - n.value * real(1.57079632673412561417e+00)) - n.value * real(6.07710050630396597660e-11)) -
        n.value * real(2.02226624871116645580e-21);
  }
  const V z = r * r;
  V s, c;
  if constexpr (SINGLE) {
    s = ((real(-1.9515295891e-4) * z + real(8.3321608736e-3)) * z - real(1.6666654611e-1)) * z * r + r;
    c = ((real(2.443315711809948e-5) * z - real(1.388731625493765e-3)) * z + real(4.166664568298827e-2)) * z * z -
        real(0.5) * z + real(1);
  } else {
    V p = real(1.58969099521155010221e-10) * z - real(2.50507602534068634195e-08);
    p = (p * z + real(2.75573137070700676789e-06)) * z - real(1.98412698298579493134e-04);
    p = (p * z + real(8.33333333332248946124e-03)) * z - real(1.66666666666666324348e-01);
    s = p * z * r + r;
    V q = real(-1.13596475577881948265e-11) * z + real(2.08757232129817482790e-09);
    q = (q * z - real(2.75573143513906633035e-07)) * z + real(2.48015872894767294178e-05);
    q = (q * z - real(1.38888888888741095749e-03)) * z + real(4.16666666666666019037e-02);
    const V half = real(0.5) * z, w = real(1) - half;
    c = w + (((real(1) - w) - half) + z * z * q);
  }
  const Int<V> quadrant = n.bits + QUADRANT;
  const V y = (quadrant & 1) != 0 ? c : s;
  V result = (quadrant & 2) != 0 ? -y : y;
  result = (x == 0) & (QUADRANT == 0 ? Int<V>{} - 1 : Int<V>{}) ? x : result;
  const Int<V> far = !(absolute(x) <= splat<V>(REACH));
  if (__builtin_expect(any<V>(far), 0)) {
    for (int i = 0; i < LANES<V>; ++i) {
      if (!far[i]) continue;
      if constexpr (SINGLE) result[i] = QUADRANT ? __builtin_cosf(x[i]) : __builtin_sinf(x[i]);
      if constexpr (!SINGLE) result[i] = QUADRANT ? __builtin_cos(x[i]) : __builtin_sin(x[i]);
    }
  }
  return result;
}

// Cephes' atan: around 0, 1 and infinity.
template <class V>
INLINE V arc_tangent(V x) {
  constexpr real HALF_PI = 1.57079632679489661923, LOST = SINGLE ? -4.37113883e-8 : 6.123233995736765886130e-17;
  const V size = absolute(x);
  const Int<V> far = size > real(2.414213562373095), middle = size > real(SINGLE ? 0.4142135623730950 : 0.66);
  const V y = far ? real(-1) / size : middle ? (size - real(1)) / (size + real(1)) : size;
  const V z = y * y;
  V p;
  if constexpr (SINGLE) {
    p = ((real(8.05374449538e-2) * z - real(1.38776856032e-1)) * z + real(1.99777106478e-1)) * z - real(3.33329491539e-1);
    p = p * z * y + y;
  } else {
    constexpr double TOP[] = {0, -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
                              -1.228866684490136173410e2, -6.485021904942025371773e1};
    constexpr double BOTTOM[] = {1, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
                                 4.853903996359136964868e2, 1.945506571482613964425e2};
    p = z * quotient(TOP, BOTTOM, z) * y + y;
  }
  const V base = far ? splat<V>(HALF_PI) : middle ? splat<V>(HALF_PI / 2) : V{};
  const V lost = far ? splat<V>(LOST) : middle ? splat<V>(LOST / 2) : V{};
  const V result = base + (p + lost);
  return (V)((Int<V>)absolute(result) | ((Int<V>)x & (Int<V>)splat<V>(real(-0.0))));
}

// Exact: a multiple of b, as far as it fits a number, is taken off with one rounding, of nothing. Other quotients one by
// one, by the C library.
template <class V>
INLINE V remainder_of(V a, V b) {
  constexpr real MOST = real(integer(1) << (MANTISSA - 1));
  const V size = absolute(a), unit = absolute(b), q = floor_of(size / unit);
  V r;
  for (int i = 0; i < LANES<V>; ++i) {
    r[i] = SINGLE ? __builtin_fmaf(-q[i], unit[i], size[i]) : __builtin_fma(-q[i], unit[i], size[i]);
  }
  r = r < 0 ? r + unit : r;
  r = (V)((Int<V>)absolute(r) | ((Int<V>)a & (Int<V>)splat<V>(real(-0.0))));
  const Int<V> plain = (q < MOST) & (unit < std::numeric_limits<real>::infinity()) & (unit > 0);
  if (__builtin_expect(any<V>(!plain), 0)) {
    for (int i = 0; i < LANES<V>; ++i) {
      if (!plain[i]) r[i] = SINGLE ? __builtin_fmodf(a[i], b[i]) : __builtin_fmod(a[i], b[i]);
    }
  }
  return r;
}

// x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); log(1 + f) by s = f / (2 + f), as in fdlibm's e_log.c
template <class V>
INLINE V logarithm(V x) {
  constexpr real TINY = std::numeric_limits<real>::min(), INF = std::numeric_limits<real>::infinity();
  constexpr int LIFT = MANTISSA + 2;
  const Int<V> subnormal = x < TINY;
  const V y = subnormal ? x * real(integer(1) << LIFT) : x;
  const Int<V> bits = (Int<V>)y, root_half = (Int<V>)splat<V>(0.70710678118654752440);
  const Int<V> n = (bits - root_half) >> MANTISSA;
  const V m = (V)(bits - (n << MANTISSA));
  const V k = __builtin_convertvector(n, V) - (subnormal ? splat<V>(real(LIFT)) : V{});
  const V f = m - real(1), s = f / (f + real(2)), z = s * s;
  V p;
  if constexpr (SINGLE) {
    p = splat<V>(0.24279078841);
    p = p * z + real(0.28498786688);
    p = p * z + real(0.40000972152);
    p = p * z + real(0.66666662693);
  } else {
    p = splat<V>(1.479819860511658591e-1);
    p = p * z + real(1.531383769920937332e-1);
    p = p * z + real(1.818357216161805012e-1);
    p = p * z + real(2.222219843214978396e-1);
    p = p * z + real(2.857142874366239149e-1);
    p = p * z + real(3.999999999940941908e-1);
    p = p * z + real(6.666666666666735130e-1);
  }
  const V half_square = real(0.5) * f * f;
  V result = k * LN2_HIGH - ((half_square - (s * (half_square + z * p) + k * LN2_LOW)) - f);
  result = x < INF ? result : x;  // inf, NaN
  result = x == 0 ? splat<V>(-INF) : result;
  return x < 0 ? splat<V>(std::numeric_limits<real>::quiet_NaN()) : result;
}

}  // namespace
