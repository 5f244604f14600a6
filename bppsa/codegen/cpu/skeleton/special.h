// Special functions, one number at a time and in double, by the C library and after Cephes (S. Moshier, BSD licence),
// whose limits and edges are PyTorch's. A kernel that has none of them does not read this.
extern "C" double lgamma_r(double, int*) noexcept;

namespace {

constexpr double INFINITE = __builtin_inf(), NOTHING = __builtin_nan("");
constexpr double PI = 3.14159265358979323846, ROOT_PI = 1.77245385090551602730, ROOT_2PI = 2.50662827463100050242;

template <class F, class V>
__attribute__((noinline)) V each_lane(F f, V x) {
  for (int i = 0; i < LANES<V>; ++i) x[i] = real(f(double(x[i])));
  return x;
}

template <class F, class V>
__attribute__((noinline)) V each_lane(F f, V x, V y) {
  for (int i = 0; i < LANES<V>; ++i) x[i] = real(f(double(x[i]), double(y[i])));
  return x;
}

template <int N>
inline double polynomial(const double (&highest_first)[N], double x) {
  double p = 0;
  for (double coefficient : highest_first) p = p * x + coefficient;
  return p;
}

template <int N>
inline double chebyshev(const double (&highest_first)[N], double x) {
  double b0 = 0, b1 = 0, b2 = 0;
  for (double coefficient : highest_first) b2 = b1, b1 = b0, b0 = x * b1 - b2 + coefficient;
  return 0.5 * (b0 - b2);
}

double tail_of_the_normal(double x) { return __builtin_erfc(x); }

// e^(x^2) with the rounding error of x^2 put right; far out the asymptotic series.
double scaled_tail_of_the_normal(double x) {
  if (x < -27) return INFINITE;
  if (x < 26) {
    const double square = x * x, error = __builtin_fma(x, x, -square);
    const double e = __builtin_exp(square);
    return e < INFINITE ? (e + e * error) * __builtin_erfc(x) : e;
  }
  const double half = 0.5 / x / x;
  double sum = 1;
  for (int k = 15; k > 0; k -= 2) sum = 1 - k * half * sum;
  return sum / (x * ROOT_PI);
}

// A rational function, then Newton's steps, beyond 1/2 by the tail, whose argument is exact there.
double inverse_error_function(double y) {
  const double size = __builtin_fabs(y);
  if (!(size < 1)) return size == 1 ? y * INFINITE : NOTHING;
  double x;
  if (size <= 0.7) {
    const double z = y * y;
    x = size * (((-0.140543331 * z + 0.914624893) * z - 1.645349621) * z + 0.886226899) /
        ((((0.012229801 * z - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1);
  } else {
    const double z = __builtin_sqrt(-__builtin_log((1 - size) / 2));
    x = (((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454) / ((1.637067800 * z + 3.543889200) * z + 1);
  }
  for (int i = 0; i < 3; ++i) {
    const double more = size < 0.5 ? __builtin_erf(x) - size : (1 - size) - __builtin_erfc(x);
    x -= more / (2 / ROOT_PI * __builtin_exp(-x * x));
  }
  return __builtin_copysign(x, y);
}

double quantile_of_the_normal(double p) {
  static constexpr double MIDDLE_TOP[] = {-5.99633501014107895267e1, 9.80010754185999661536e1,
      -5.66762857469070293439e1, 1.39312609387279679503e1, -1.23916583867381258016e0};
  static constexpr double MIDDLE_BOTTOM[] = {1.00000000000000000000e0, 1.95448858338141759834e0,
      4.67627912898881538453e0, 8.63602421390890590575e1, -2.25462687854119370527e2, 2.00260212380060660359e2,
      -8.20372256168333339912e1, 1.59056225126211695515e1, -1.18331621121330003142e0};
  static constexpr double NEAR_TOP[] = {4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1,
      4.40805073893200834700e1, 1.46849561928858024014e1, 2.18663306850790267539e0, -1.40256079171354495875e-1,
      -3.50424626827848203418e-2, -8.57456785154685413611e-4};
  static constexpr double NEAR_BOTTOM[] = {1.00000000000000000000e0, 1.57799883256466749731e1, 4.53907635128879210584e1,
      4.13172038254672030440e1, 1.50425385692907503408e1, 2.50464946208309415979e0, -1.42182922854787788574e-1,
      -3.80806407691578277194e-2, -9.33259480895457427372e-4};
  static constexpr double FAR_TOP[] = {3.23774891776946035970e0, 6.91522889068984211695e0, 3.93881025292474443415e0,
      1.33303460815807542389e0, 2.01485389549179081538e-1, 1.23716634817820021358e-2, 3.01581553508235416007e-4,
      2.65806974686737550832e-6, 6.23974539184983293730e-9};
  static constexpr double FAR_BOTTOM[] = {1.00000000000000000000e0, 6.02427039364742014255e0, 3.67983563856160859403e0,
      1.37702099489081330271e0, 2.16236993594496635890e-1, 1.34204006088543189037e-2, 3.28014464682127739104e-4,
      2.89247864745380683936e-6, 6.79019408009981274425e-9};
  if (!(p > 0 && p < 1)) return p == 0 ? -INFINITE : p == 1 ? INFINITE : NOTHING;
  constexpr double EDGE = 0.13533528323661269189;  // e^-2
  const bool right = p > 1 - EDGE;
  const double y = right ? 1 - p : p;
  if (y > EDGE) {
    const double from = y - 0.5, z = from * from;
    return ROOT_2PI * (from + from * (z * polynomial(MIDDLE_TOP, z) / polynomial(MIDDLE_BOTTOM, z)));
  }
  const double x = __builtin_sqrt(-2 * __builtin_log(y)), z = 1 / x;
  const double less = x < 8 ? z * polynomial(NEAR_TOP, z) / polynomial(NEAR_BOTTOM, z)
                            : z * polynomial(FAR_TOP, z) / polynomial(FAR_BOTTOM, z);
  const double found = x - __builtin_log(x) / x - less;
  return right ? found : -found;
}

double log_gamma(double x) {
  int sign;  // lgamma itself would write it to a variable that all threads share
  return lgamma_r(x, &sign);
}

double digamma(double x) {
  static constexpr double SERIES[] = {8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3,
                                      -4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3,
                                      8.33333333333333333333e-2};
  if (x == 0) return __builtin_copysign(INFINITE, -x);
  double result = 0;
  if (x < 0) {
    const double whole = __builtin_rint(x);  // by the nearest pole, next to which all depends on the distance
    if (x == whole) return NOTHING;
    result = -PI / __builtin_tan(PI * (x - whole));
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  const double z = 1 / (x * x);
  return result + __builtin_log(x) - 0.5 / x - z * polynomial(SERIES, z);
}

// Euler and Maclaurin's sum.
double hurwitz_zeta(double s, double q) {
  static constexpr double SERIES[] = {12, -720, 30240, -1209600, 47900160, -1.8924375803183791606e9, 7.47242496e10,
                                      -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
                                      1.8152105401943546773e17, -7.1661652561756670113e18};
  constexpr double LEAST = 1.11022302462515654042e-16;
  if (s == 1) return INFINITE;
  if (s < 1) return NOTHING;
  if (q <= 0 && q == __builtin_floor(q)) return INFINITE;
  if (q <= 0 && s != __builtin_floor(s)) return NOTHING;
  double sum = __builtin_pow(q, -s), at = q, term = 0;
  for (int i = 0; i < 9 || at <= 9; ++i) {
    at += 1;
    term = __builtin_pow(at, -s);
    sum += term;
    if (__builtin_fabs(term) < LEAST * __builtin_fabs(sum)) return sum;
  }
  sum += term * at / (s - 1) - 0.5 * term;
  double factor = 1, k = 0;
  for (double coefficient : SERIES) {
    factor *= s + k;
    term /= at;
    const double more = factor * term / coefficient;
    sum += more;
    if (__builtin_fabs(more / sum) < LEAST) return sum;
    factor *= s + k + 1;
    term /= at;
    k += 2;
  }
  return sum;
}

template <int ORDER>
double scaled_bessel(double x) {
  static constexpr double ZERO_NEAR[] = {-4.41534164647933937950e-18, 3.33079451882223809783e-17,
      -2.43127984654795469359e-16, 1.71539128555513303061e-15, -1.16853328779934516808e-14, 7.67618549860493561688e-14,
      -4.85644678311192946090e-13, 2.95505266312963983461e-12, -1.72682629144155570723e-11, 9.67580903537323691224e-11,
      -5.18979560163526290666e-10, 2.65982372468238665035e-9, -1.30002500998624804212e-8, 6.04699502254191894932e-8,
      -2.67079385394061173391e-7, 1.11738753912010371815e-6, -4.41673835845875056359e-6, 1.64484480707288970893e-5,
      -5.75419501008210370398e-5, 1.88502885095841655729e-4, -5.76375574538582365885e-4, 1.63947561694133579842e-3,
      -4.32430999505057594430e-3, 1.05464603945949983183e-2, -2.37374148058994688156e-2, 4.93052842396707084878e-2,
      -9.49010970480476444210e-2, 1.71620901522208775349e-1, -3.04682672343198398683e-1, 6.76795274409476084995e-1};
  static constexpr double ZERO_FAR[] = {-7.23318048787475395456e-18, -4.83050448594418207126e-18,
      4.46562142029675999901e-17, 3.46122286769746109310e-17, -2.82762398051658348494e-16, -3.42548561967721913462e-16,
      1.77256013305652638360e-15, 3.81168066935262242075e-15, -9.55484669882830764870e-15, -4.15056934728722208663e-14,
      1.54008621752140982691e-14, 3.85277838274214270114e-13, 7.18012445138366623367e-13, -1.79417853150680611778e-12,
      -1.32158118404477131188e-11, -3.14991652796324136454e-11, 1.18891471078464383424e-11, 4.94060238822496958910e-10,
      3.39623202570838634515e-9, 2.26666899049817806459e-8, 2.04891858946906374183e-7, 2.89137052083475648297e-6,
      6.88975834691682398426e-5, 3.36911647825569408990e-3, 8.04490411014108831608e-1};
  static constexpr double ONE_NEAR[] = {2.77791411276104639959e-18, -2.11142121435816608115e-17,
      1.55363195773620046921e-16, -1.10559694773538630805e-15, 7.60068429473540693410e-15, -5.04218550472791168711e-14,
      3.22379336594557470981e-13, -1.98397439776494371520e-12, 1.17361862988909016308e-11, -6.66348972350202774223e-11,
      3.62559028155211703701e-10, -1.88724975172282928790e-9, 9.38153738649577178388e-9, -4.44505912879632808065e-8,
      2.00329475355213526229e-7, -8.56872026469545474066e-7, 3.47025130813767847674e-6, -1.32731636560394358279e-5,
      4.78156510755005422638e-5, -1.61760815825896745588e-4, 5.12285956168575772895e-4, -1.51357245063125314899e-3,
      4.15642294431288815669e-3, -1.05640848946261981558e-2, 2.47264490306265168283e-2, -5.29459812080949914269e-2,
      1.02643658689847095384e-1, -1.76416518357834055153e-1, 2.52587186443633654823e-1};
  static constexpr double ONE_FAR[] = {7.51729631084210481353e-18, 4.41434832307170791151e-18,
      -4.65030536848935832153e-17, -3.20952592199342395980e-17, 2.96262899764595013876e-16, 3.30820231092092828324e-16,
      -1.88035477551078244854e-15, -3.81440307243700780478e-15, 1.04202769841288027642e-14, 4.27244001671195135429e-14,
      -2.10154184277266431302e-14, -4.08355111109219731823e-13, -7.19855177624590851209e-13, 2.03562854414708950722e-12,
      1.41258074366137813316e-11, 3.25260358301548823856e-11, -1.89749581235054123450e-11, -5.58974346219658380687e-10,
      -3.83538038596423702205e-9, -2.63146884688951950684e-8, -2.51223623787020892529e-7, -3.88256480887769039346e-6,
      -1.10588938762623716291e-4, -9.76109749136146840777e-3, 7.78576235018280120474e-1};
  const double size = __builtin_fabs(x), y = size / 2 - 2, z = 32 / size - 2;
  const double root = __builtin_sqrt(size);
  if (ORDER == 0) return size <= 8 ? chebyshev(ZERO_NEAR, y) : chebyshev(ZERO_FAR, z) / root;
  const double result = size <= 8 ? size * chebyshev(ONE_NEAR, y) : chebyshev(ONE_FAR, z) / root;
  return x < 0 ? -result : result;
}

}  // namespace
