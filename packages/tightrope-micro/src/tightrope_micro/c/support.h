/* What the kernels share: an update, the range of a window, and functions that need no C library. */
#ifndef TIGHTROPE_SUPPORT_H
#define TIGHTROPE_SUPPORT_H

#include <stdint.h>

/* Gradient descent: d = +-g + decay * w; m = momentum * m + d; w -= rate * (m, or d + momentum * m, or d). */
typedef struct {
    float rate, momentum, decay;
    int nesterov, maximize;
} tr_rule;

static inline void tr_update(float *w, float *m, int at, float g, tr_rule rule)
{
    float d = (rule.maximize ? -g : g) + rule.decay * w[at];
    if (m) {
        m[at] = rule.momentum * m[at] + d;
        d = rule.nesterov ? d + rule.momentum * m[at] : m[at];
    }
    w[at] -= rule.rate * d;
}

/* AdamW: rates = {-rate / (1 - beta1^t), sqrt(1 - beta2^t)}, shrink = 1 - rate * decay, first = 1 - beta1,
   second = 1 - beta2; m += first * (g - m); v = keep * v + second * g * g;
   w = shrink * w + rates[0] * m / (sqrt(v) / rates[1] + eps). Rounded where fused AdamW of PyTorch rounds. */
typedef struct {
    float *v;
    const float *rates;
    float shrink, first, keep, second, eps;
    int maximize;
} tr_adamw;

static inline void tr_update_adamw(float *w, float *m, int at, float g, tr_adamw rule)
{
    const float d = rule.maximize ? -g : g;
    m[at] = __builtin_fmaf(rule.first, d - m[at], m[at]);
    rule.v[at] = __builtin_fmaf(rule.second * d, d, rule.keep * rule.v[at]);
    const float root = __builtin_sqrtf(rule.v[at]) / rule.rates[1] + rule.eps;
    w[at] = rule.shrink * w[at] + rule.rates[0] * m[at] / root;
}

/* First output element whose window element `at` lies inside, and the one behind the last. */
static inline int tr_first(int at, int padding, int stride)
{
    return padding > at ? (padding - at + stride - 1) / stride : 0;
}

static inline int tr_last(int at, int padding, int stride, int size, int outputs)
{
    const int most = size - 1 + padding - at;
    const int last = most < 0 ? 0 : most / stride + 1;
    return last < outputs ? last : outputs;
}

/* A sum of products in the next format, proved to stay in 32 bits: half units are added before each shift. */
static inline int32_t tr_requantize(int32_t a, int32_t m, int pre, int shift, int32_t low, int32_t high)
{
    a = ((a + ((1 << pre) >> 1)) >> pre) * m;
    a = (a + ((1 << shift) >> 1)) >> shift;
    return a < low ? low : a > high ? high : a;
}

/* One output of a convolution: products of a window that begins at (top, left), which may lie outside. */
static inline int32_t tr_window(const int8_t *x, const int8_t *f, int32_t sum, int cig, int h, int wi, int kh, int kw,
                                int top, int left)
{
    const int kx0 = left < 0 ? -left : 0, kx1 = wi - left < kw ? wi - left : kw;
    for (int c = 0; c < cig; c++, x += h * wi, f += kh * kw)
        for (int ky = top < 0 ? -top : 0; ky < kh && top + ky < h; ky++) {
            const int8_t *row = x + (top + ky) * wi + left, *taps = f + ky * kw;
            for (int kx = kx0; kx < kx1; kx++)
                sum += row[kx] * taps[kx];
        }
    return sum;
}

static inline int32_t tr_clamp(int32_t a, int32_t low, int32_t high)
{
    return a < low ? low : a > high ? high : a;
}

static inline float tr_sqrt(float x)
{
    return __builtin_sqrtf(x);
}

typedef union {
    float value;
    uint32_t bits;
} tr_float;

/* exp(x) = 2^n * exp(r), |r| <= ln(2) / 2, by a Taylor polynomial of degree 7; 0 below the normal numbers. */
static inline float tr_exp(float x)
{
    if (x < -87.0f)
        return 0.0f;
    if (x > 88.0f)
        x = 88.0f;
    const int n = (int)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    const float r = (x - (float)n * 0.693359375f) + (float)n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    tr_float scale;
    scale.bits = (uint32_t)(n + 127) << 23;
    return p * scale.value;
}

/* log(x) = n * ln(2) + 2 atanh((f - 1) / (f + 1)), f in [sqrt(1/2), sqrt(2)); x is normal and > 0. */
static inline float tr_log(float x)
{
    tr_float f = {x};
    int n = (int)(f.bits >> 23) - 127;
    f.bits = (f.bits & 0x7fffffu) | 0x3f800000u;
    if (f.value > 1.41421356f) {
        f.value *= 0.5f;
        n++;
    }
    const float t = (f.value - 1.0f) / (f.value + 1.0f), s = t * t;
    float p = 2.0f / 11.0f;
    p = p * s + 2.0f / 9.0f;
    p = p * s + 2.0f / 7.0f;
    p = p * s + 2.0f / 5.0f;
    p = p * s + 2.0f / 3.0f;
    p = p * s + 2.0f;
    return p * t + (float)n * 0.693147181f;
}

/* erf(x): x * p(x^2) up to 1, then 1 - exp(-x^2) * q(1 / (1 + x / 2)); fits by Chebyshev nodes, within 1e-8. */
static inline float tr_erf(float x)
{
    const float a = x < 0.0f ? -x : x;
    float p;
    if (a <= 1.0f) {
        const float s = a * a;
        p = 7.88249711e-5f;
        p = p * s - 8.01885499e-4f;
        p = p * s + 5.18931194e-3f;
        p = p * s - 2.68543288e-2f;
        p = p * s + 1.12835975e-1f;
        p = p * s - 3.76126269e-1f;
        p = (p * s + 1.12837917f) * a;
    } else if (a < 4.2f) {
        const float t = 1.0f / (1.0f + 0.5f * a);
        p = -5.79633644e-2f;
        p = p * t - 4.37671781e-2f;
        p = p * t + 3.86657752e-1f;
        p = p * t + 1.12748454e-1f;
        p = p * t + 3.2657172e-1f;
        p = p * t + 2.74455466e-1f;
        p = p * t + 5.38750579e-4f;
        p = 1.0f - tr_exp(-a * a) * p;
    } else
        p = 1.0f;
    return x < 0.0f ? -p : p;
}

static inline float tr_tanh(float x)
{
    const float a = x < 0.0f ? -x : x, s = a * a;
    if (a < 0.3f) { /* x * (1 - x^2 / 3 + 2 x^4 / 15 - 17 x^6 / 315 + 62 x^8 / 2835) */
        const float p = ((62.0f / 2835.0f * s - 17.0f / 315.0f) * s + 2.0f / 15.0f) * s - 1.0f / 3.0f;
        return x + x * s * p;
    }
    const float e = tr_exp(-2.0f * a), y = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -y : y;
}

static inline float tr_sigmoid(float x)
{
    const float e = tr_exp(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* log(1 + exp(x)). */
static inline float tr_softplus(float x)
{
    const float e = tr_exp(x < 0.0f ? x : -x);
    const float rest = e < 1e-4f ? e : tr_log(1.0f + e);
    return x < 0.0f ? rest : x + rest;
}

/* A number whose bits all depend on all bits of another one. */
static inline uint32_t tr_mixed(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static inline float tr_clip(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* The functions of `names.CURVES`. */
static inline float tr_curve(float x, int kind, float a, float b)
{
    switch (kind) {
    case 0:
        return a * x + b;
    case 1:
        return tr_clip(x, a, b);
    case 2:
        return tr_tanh(x);
    case 3:
        return tr_sigmoid(x);
    case 4:
        return x * tr_sigmoid(x);
    case 5:
        return x * tr_clip(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    case 6:
        return tr_clip(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    case 7:
        return x > 0.0f ? x : a * x;
    case 8:
        return x > 0.0f ? x : a * (tr_exp(x) - 1.0f);
    case 9:
        return tr_exp(x);
    case 10:
        return x < 0.0f ? -x : x;
    case 11:
        return tr_sqrt(x);
    case 12:
        return 1.0f / tr_sqrt(x);
    case 13:
        return 1.0f / x;
    case 14:
        return tr_log(x);
    case 15:
        return tr_softplus(x);
    case 16:
        return x * tr_tanh(tr_softplus(x));
    case 18:
        return tr_erf(x);
    default: /* GELU by tanh */
        return 0.5f * x * (1.0f + tr_tanh(0.797884561f * (x + 0.044715f * x * x * x)));
    }
}

static inline float tr_dot(const float *a, const float *b, int n)
{
    float sum = 0.0f;
    for (int k = 0; k < n; k++)
        sum += a[k] * b[k];
    return sum;
}

/* What the gates of a recurrent layer are computed from, in one step of one sample; a GRU's candidate (kind 2) needs
   both sums. A state of NULL is 0. */
static inline void tr_gates(float *s, const float *x, const float *w, const float *b, const float *h, const float *u,
                            const float *c, int in, int hidden, int kind)
{
    const int rows = kind < 2 ? hidden : (kind + 1) * hidden;
    for (int r = 0; r < rows; r++) {
        const float a = tr_dot(x, w + r * in, in) + (b ? b[r] : 0.0f);
        const float z = (h ? tr_dot(h, u + r * hidden, hidden) : 0.0f) + (c ? c[r] : 0.0f);
        s[r] = a + z;
        if (kind == 2 && r >= 2 * hidden) {
            s[r] = a;
            s[r + hidden] = z;
        }
    }
}

#endif
