/* Sums as TensorFlow Lite's reference kernels round them: multiplied in 31 bits and rounded, shifted and rounded. */
#ifndef TIGHTROPE_REFERENCE_H
#define TIGHTROPE_REFERENCE_H

#include "support.h"

/* a * b / 2^31, halves up. */
static inline int32_t tr_high(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31);
}

/* x / 2^by, halves away from zero; |x| + 2^(by - 1) fits 32 bits. */
static inline int32_t tr_divide(int32_t x, int by)
{
    return by ? (x + (1 << (by - 1)) + (x >> 31)) >> by : x;
}

/* The same of a number that is not negative, and may have all bits; shifted by all bits it is 0. */
static inline int32_t tr_divide_plain(int32_t x, int by)
{
    return by > 31 ? 0 : (int32_t)(((uint32_t)x + (1u << (by - 1))) >> by);
}

/* x * m / 2^31 * 2^shift. */
static inline int32_t tr_scale(int32_t x, int32_t m, int shift)
{
    return shift > 0 ? tr_high(x * (1 << shift), m) : tr_divide(tr_high(x, m), -shift);
}

/* Where sums go: 8 bits, or as they are. Multipliers and shifts are of every channel, or one of all; with starts, of
   64 bits in two words, products are not rounded before they are shifted. */
typedef struct {
    const int32_t *b, *m, *starts;
    const int8_t *shifts;
    int8_t *y;
    int32_t *sums;
    int each, zero, low, high;
} tr_results;

static inline void tr_put(const tr_results *r, int at, int channel, int32_t sum)
{
    const int k = r->each ? channel : 0;
    int32_t value;
    if (r->sums) {
        r->sums[at] = sum;
        return;
    }
    if (r->starts) {
        const int64_t start = (int64_t)((uint64_t)(uint32_t)r->starts[2 * k + 1] << 32 | (uint32_t)r->starts[2 * k]);
        value = (int32_t)(((int64_t)sum * r->m[k] + start) >> r->shifts[k]);
    } else {
        value = tr_scale(sum, r->m[k], r->shifts[k]);
    }
    r->y[at] = (int8_t)tr_clamp(value + r->zero, r->low, r->high);
}

/* Sums of some channels of some pixels, whose results lie `apart`: a function of its own has all registers for it. */
TR_ALONE void tr_put_all(const tr_results *r, int at, int channel, int channels, int pixels, int apart,
                         const int32_t *s)
{
    const int32_t zero = r->zero, low = r->low, high = r->high;
    for (int c = 0; c < channels; c++) {
        int8_t *y = r->y + at + c;
        const int k = r->each ? channel + c : 0, shift = r->shifts[k];
        const int32_t m = r->m[k], half = shift < 0 ? 1 << (-shift - 1) : 0;
        const int32_t *sum = s + c, *end = sum + pixels * channels;
        if (shift < 0)
            for (; sum != end; sum += channels, y += apart) {
                const int32_t high_word = tr_high(*sum, m);
                *y = (int8_t)tr_clamp(((high_word + half + (high_word >> 31)) >> -shift) + zero, low, high);
            }
        else
            for (; sum != end; sum += channels, y += apart)
                *y = (int8_t)tr_clamp(tr_scale(*sum, m, shift) + zero, low, high);
    }
}

/* A window on a map with channels last: `size` of `ci` channels at each tap, `zero` outside of the map. */
typedef struct {
    int h, wi, ci, kh, kw, dh, dw, size, zero;
} tr_window_shape;

/* Copies a window whose first tap is at (top, left). */
static inline void tr_patch(int8_t *to, const int8_t *x, const tr_window_shape *c, int top, int left)
{
    const int row = c->kw * c->size;
    for (int ky = 0, iy = top; ky < c->kh; ky++, iy += c->dh, to += row) {
        if (iy >= 0 && iy < c->h && c->dw == 1 && c->size == c->ci && left >= 0 && left + c->kw <= c->wi) {
            __builtin_memcpy(to, x + (iy * c->wi + left) * c->ci, (unsigned)row);
            continue;
        }
        for (int kx = 0, ix = left; kx < c->kw; kx++, ix += c->dw) {
            const int inside = iy >= 0 && iy < c->h && ix >= 0 && ix < c->wi;
            for (int k = 0; k < c->size; k++)
                to[kx * c->size + k] = (int8_t)(inside ? x[(iy * c->wi + ix) * c->ci + k] : c->zero);
        }
    }
}

/* The sum of a window without a copy of it. */
static inline int32_t tr_patch_sum(const int8_t *x, const int8_t *f, int32_t sum, const tr_window_shape *c, int top,
                                   int left)
{
    for (int ky = 0, iy = top; ky < c->kh; ky++, iy += c->dh)
        for (int kx = 0, ix = left; kx < c->kw; kx++, ix += c->dw, f += c->size) {
            const int inside = iy >= 0 && iy < c->h && ix >= 0 && ix < c->wi;
            for (int k = 0; k < c->size; k++)
                sum += (inside ? x[(iy * c->wi + ix) * c->ci + k] : c->zero) * f[k];
        }
    return sum;
}

/* Largest window of a pool that lies inside of the map, in one dimension: first and end. */
static inline void tr_inside(int origin, int size, int window, int *first, int *end)
{
    *first = origin < 0 ? 0 : origin;
    *end = origin + window < size ? origin + window : size;
}

/* A number in a format with fewer bits before the point. */
static inline int32_t tr_raise(int32_t x, int by)
{
    const int32_t most = INT32_MAX >> by;
    return x > most ? INT32_MAX : x < -most ? INT32_MIN : x * (1 << by);
}

/* 2^30 / (1 + a / 2^31), by three steps of Newton from a line; a >= 0. */
static inline int32_t tr_inverse(int32_t a)
{
    const int32_t half = (int32_t)(((int64_t)a + INT32_MAX + 1) / 2);
    int32_t x = 1515870810 + tr_high(-1010580540, half);
    for (int step = 0; step < 3; step++) {
        x += tr_raise(tr_high(x, (1 << 29) - tr_high(x, half)), 2);
    }
    return tr_raise(x, 1);
}

#endif
