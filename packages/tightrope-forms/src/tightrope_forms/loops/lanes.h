// Vectors, formulas and products, for `real` and `W` lanes; included as text before the loops.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

using i64 = std::int64_t;
using whole = std::conditional_t<sizeof(real) == 4, std::int32_t, std::int64_t>;
typedef real V __attribute__((vector_size(W * sizeof(real))));
typedef whole M __attribute__((vector_size(W * sizeof(real))));

namespace {

inline V every(real x) { return x - V{}; }  // -0 stays
inline V every(const real* p) { return every(*p); }
template <int N> inline V load(const real* p) {
    V v{};
    std::memcpy(&v, p, N * sizeof(real));
    return v;
}
template <int N> inline V gather(const real* p, i64 stride) {
    V v{};
    for (int k = 0; k < N; ++k) v[k] = p[k * stride];
    return v;
}
template <int N> inline void store(real* p, V v) { std::memcpy(p, &v, N * sizeof(real)); }

template <int Columns, class Body> inline void lanes(Body body) {
    for (i64 j = 0; j + W <= Columns; j += W) body(std::integral_constant<int, W>{}, j);
    if constexpr (Columns % W != 0) body(std::integral_constant<int, Columns % W>{}, i64{Columns - Columns % W});
}

inline V v_add(V a, V b) { return a + b; }
inline V v_sub(V a, V b) { return a - b; }
inline V v_mul(V a, V b) { return a * b; }
inline V v_div(V a, V b) { return a / b; }
inline V v_neg(V a) { return -a; }
inline V v_abs(V a) { return (V)((M)a & ~(M)every(real(-0.0))); }
inline V v_relu(V a) { return a <= V{} ? V{} : a; }  // NaN stays
inline V v_max(V a, V b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline V v_min(V a, V b) { return a != a ? a : b != b ? b : a < b ? a : b; }
inline V v_sign(V a) { return a > V{} ? every(real(1)) : a < V{} ? every(real(-1)) : a * real(0); }
inline V v_above(V a, V b, V c, V d) { return a <= b ? d : c; }
inline V v_sqrt(V a) {
    for (int k = 0; k < W; ++k) a[k] = std::sqrt(a[k]);
    return a;
}

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2: a polynomial of degree 6; 1 ulp. Beyond what a float holds it is
// infinite or 0. `power` leaves out the ends: |x| <= 87.
inline V power(V x, V& two) {
    const V shift = every(real(12582912));
    const V n = (x * real(1.44269504088896341) + shift) - shift;
    const V r = (x - n * real(0.693359375)) + n * real(2.12194440e-4);
    two = n;
    V p = every(real(1.9875691500e-4));
    p = p * r + real(1.3981999507e-3);
    p = p * r + real(8.3334519073e-3);
    p = p * r + real(4.1665795894e-2);
    p = p * r + real(1.6666665459e-1);
    p = p * r + real(5.0000001201e-1);
    return p * r * r + r + real(1);
}
inline V scaled(V p, V n) { return p * (V)((__builtin_convertvector(n, M) + 127) << 23); }
inline V inside(V x, real most) { return x > most ? every(most) : x < -most ? every(-most) : x; }

inline V v_exp(V x) {
    if constexpr (sizeof(real) == 8) {
        for (int k = 0; k < W; ++k) x[k] = std::exp(x[k]);
        return x;
    } else {
        V n;
        const V p = power(inside(x, real(88.7228394)), n);
        const V half = __builtin_convertvector(__builtin_convertvector(n * real(0.5), M), V);
        const V found = scaled(scaled(p, half), n - half);
        return x > real(88.7228394) ? every(real(INFINITY)) : x < real(-87.3) ? V{} : found;
    }
}
inline V v_sigmoid(V x) {
    if constexpr (sizeof(real) == 8) return real(1) / (real(1) + v_exp(-x));
    V n;
    const V p = power(inside(-x, real(87)), n);
    return real(1) / (real(1) + scaled(p, n));
}
inline V v_tanh(V x) {
    if constexpr (sizeof(real) == 8) {
        for (int k = 0; k < W; ++k) x[k] = std::tanh(x[k]);
        return x;
    } else {
        const V z = x * x, size = v_abs(x);
        V q = every(real(-5.70498872745e-3));
        q = q * z + real(2.06390887954e-2);
        q = q * z - real(5.37397155531e-2);
        q = q * z + real(1.33314422036e-1);
        q = q * z - real(3.33332819422e-1);
        const V near = q * z * x + x;
        V n;
        const V p = power(inside(size * real(2), real(87)), n);
        const V far = real(1) - real(2) / (scaled(p, n) + real(1));
        return size < real(0.625) ? near : x < V{} ? -far : far + x * real(0);
    }
}

// Packs a matrix of `inner` rows in panels of P columns; what is missing of the last one is 0.
template <int P> void pack(const real* from, i64 inner, i64 columns, i64 down, i64 right, real* to) {
    for (i64 n = 0; n < columns; n += P)
        for (i64 k = 0; k < inner; ++k)
            for (i64 c = n; c < n + P; ++c) *to++ = c < columns ? from[k * down + c * right] : real(0);
}

template <int R, int P, int Valid>
inline void panel(const real* a, i64 lda, const real* w, i64 inner, const real* bias, i64 down, i64 right, real* out,
                  i64 ldo) {
    V sum[R][P];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) {
            sum[r][p] = V{};
            if (bias && right == 1 && (p + 1) * W <= Valid) sum[r][p] = load<W>(bias + r * down + p * W);
            else if (bias)
                for (int c = 0; c < W; ++c)
                    if (p * W + c < Valid) sum[r][p][c] = bias[r * down + (p * W + c) * right];
        }
    for (i64 k = 0; k < inner; ++k, w += P * W) {
        V row[P];
        for (int p = 0; p < P; ++p) row[p] = load<W>(w + p * W);
        for (int r = 0; r < R; ++r) {
            const V x = every(a[r * lda + k]);
            for (int p = 0; p < P; ++p) sum[r][p] = x * row[p] + sum[r][p];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p)
            if constexpr (Valid == P * W) store<W>(out + r * ldo + p * W, sum[r][p]);
            else
                for (int c = 0; c < W; ++c)
                    if (p * W + c < Valid) out[r * ldo + p * W + c] = sum[r][p][c];
}

// out = bias + a @ w; every sum runs along k in order.
template <int Rows, int Columns, i64 Inner, int Panel, int Block>
inline void product(const real* a, i64 lda, const real* w, const real* bias, i64 down, i64 right, real* out, i64 ldo) {
    auto blocks = [&]<int Valid>(std::integral_constant<int, Valid>, i64 n) {
        const real* packed = w + n * Inner;
        const real* b = bias ? bias + n * right : nullptr;
        i64 r = 0;
        for (; r + Block <= Rows; r += Block)
            panel<Block, Panel / W, Valid>(a + r * lda, lda, packed, Inner, b ? b + r * down : b, down, right,
                                           out + r * ldo + n, ldo);
        if constexpr (Rows % Block != 0)
            panel<Rows % Block, Panel / W, Valid>(a + r * lda, lda, packed, Inner, b ? b + r * down : b, down, right,
                                                  out + r * ldo + n, ldo);
    };
    for (i64 n = 0; n + Panel <= Columns; n += Panel) blocks(std::integral_constant<int, Panel>{}, n);
    if constexpr (Columns % Panel != 0) blocks(std::integral_constant<int, Columns % Panel>{}, Columns - Columns % Panel);
}

}  // namespace
