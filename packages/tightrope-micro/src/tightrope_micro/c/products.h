/* Sums of products of 8-bit numbers, and layers made of them: two pixels with two channels at once. */
#ifndef TIGHTROPE_PRODUCTS_H
#define TIGHTROPE_PRODUCTS_H

#include "support.h"

/* Bytes of the stack that a layer may take for the windows that it multiplies. */
#ifndef TR_COLUMNS
#define TR_COLUMNS 0
#endif

/* Four numbers of 8 bits as two pairs of 16: numbers 0 and 2, and numbers 1 and 3. */
#ifdef __ARM_FEATURE_DSP
static inline uint32_t tr_word(const int8_t *at)
{
    uint32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    return word;
}

/* The same at a row behind a pointer, and at a pointer that goes on. In the order as written: loads that are moved to the
   front take more registers than there are. */
static inline uint32_t tr_word_of(const int8_t *at, int row)
{
    uint32_t word;
    __asm__ volatile("ldr %0, [%1, %2]" : "=r"(word) : "r"(at), "r"(row), "m"(*(const int8_t(*)[])at));
    return word;
}

static inline uint32_t tr_next(const int8_t **at)
{
    uint32_t word;
    __asm__ volatile("ldr %0, [%1], #4" : "=r"(word), "+r"(*at) : "m"(*(const int8_t(*)[])*at));
    return word;
}

static inline int32_t tr_even(uint32_t word)
{
    int32_t pair;
    __asm__("sxtb16 %0, %1" : "=r"(pair) : "r"(word));
    return pair;
}

static inline int32_t tr_odd(uint32_t word)
{
    int32_t pair;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(word));
    return pair;
}

static inline int32_t tr_pairs(int32_t a, int32_t b, int32_t sum)
{
    int32_t found;
    __asm__("smlad %0, %1, %2, %3" : "=r"(found) : "r"(a), "r"(b), "r"(sum));
    return found;
}
#endif

/* A function of its own has all registers for its loop. */
#ifdef __GNUC__
#define TR_ALONE static __attribute__((noinline, unused))
#else
#define TR_ALONE static inline
#endif

/* s[2 * pixel + channel] += x[pixel] . w[channel], of k numbers each. */
TR_ALONE void tr_dots_2x2(const int8_t *x0, const int8_t *x1, const int8_t *w0, const int8_t *w1, int k, int32_t *s)
{
    int32_t a = s[0], b = s[1], c = s[2], d = s[3];
    const int8_t *const end = x0 + k;
#ifdef __ARM_FEATURE_DSP
    for (const int8_t *const last = x0 + (k & ~3); x0 != last;) {
        const uint32_t p = tr_next(&x0);
        const int32_t pe = tr_even(p), po = tr_odd(p);
        const uint32_t q = tr_next(&x1);
        const int32_t qe = tr_even(q), qo = tr_odd(q);
        const uint32_t u = tr_next(&w0);
        a = tr_pairs(po, tr_odd(u), tr_pairs(pe, tr_even(u), a));
        c = tr_pairs(qo, tr_odd(u), tr_pairs(qe, tr_even(u), c));
        const uint32_t v = tr_next(&w1);
        b = tr_pairs(po, tr_odd(v), tr_pairs(pe, tr_even(v), b));
        d = tr_pairs(qo, tr_odd(v), tr_pairs(qe, tr_even(v), d));
    }
#endif
    for (; x0 != end; x0++, x1++, w0++, w1++) {
        a += *x0 * *w0;
        b += *x0 * *w1;
        c += *x1 * *w0;
        d += *x1 * *w1;
    }
    s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* s[channel] += x . w[channel], for four channels whose weights lie `row` apart. */
TR_ALONE void tr_dots_1x4(const int8_t *x, const int8_t *w, int row, int k, int32_t *s)
{
    const int8_t *w0 = w, *w2 = w + 2 * row;
    int32_t a = s[0], b = s[1], c = s[2], d = s[3];
    const int8_t *const end = x + k;
#ifdef __ARM_FEATURE_DSP
    for (const int8_t *const last = x + (k & ~3); x != last;) {
        const uint32_t p = tr_next(&x);
        const int32_t e = tr_even(p), o = tr_odd(p);
        const uint32_t u = tr_word_of(w0, row);
        b = tr_pairs(o, tr_odd(u), tr_pairs(e, tr_even(u), b));
        const uint32_t t = tr_next(&w0);
        a = tr_pairs(o, tr_odd(t), tr_pairs(e, tr_even(t), a));
        const uint32_t z = tr_word_of(w2, row);
        d = tr_pairs(o, tr_odd(z), tr_pairs(e, tr_even(z), d));
        const uint32_t v = tr_next(&w2);
        c = tr_pairs(o, tr_odd(v), tr_pairs(e, tr_even(v), c));
    }
#endif
    for (; x != end; x++, w0++, w2++) {
        a += *x * w0[0];
        b += *x * w0[row];
        c += *x * w2[0];
        d += *x * w2[row];
    }
    s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

static inline int32_t tr_dot8(const int8_t *x, const int8_t *w, int32_t sum, int k)
{
    for (int at = 0; at < k; at++)
        sum += x[at] * w[at];
    return sum;
}

#ifdef TR_REFERENCE
#include "reference.h"
#else
/* Where sums go: 8 bits, 16, or 16 that are added to a stream of 16. A stream of 8 bits, times k of the channel, is added
   to the sums. */
typedef struct {
    const int32_t *b, *m, *k;
    const void *stream;
    void *y;
    int wide, pre, shift, low, high;
} tr_results;

static inline void tr_put(const tr_results *r, int at, int channel, int32_t sum)
{
    if (r->stream) {
        if (!r->k) {
            const int32_t value = tr_requantize(sum, r->m[channel], r->pre, r->shift, INT16_MIN, INT16_MAX);
            ((int16_t *)r->y)[at] = (int16_t)tr_clamp(((const int16_t *)r->stream)[at] + value, r->low, r->high);
            return;
        }
        sum += r->k[channel] * ((const int8_t *)r->stream)[at];
    }
    const int32_t value = tr_requantize(sum, r->m[channel], r->pre, r->shift, r->low, r->high);
    if (r->wide)
        ((int16_t *)r->y)[at] = (int16_t)value;
    else
        ((int8_t *)r->y)[at] = (int8_t)value;
}
#endif

/* A dense layer: rows of inputs, each with all outputs. */
static inline void tr_dense(const int8_t *x, const int8_t *w, const tr_results *r, int rows, int inputs, int outputs)
{
    for (int i = 0, at = 0; i < rows; i++, x += inputs, at += outputs) {
        const int8_t *f = w;
        int o = 0;
        for (; o + 4 <= outputs; o += 4, f += 4 * inputs) {
            int32_t s[4] = {r->b[o], r->b[o + 1], r->b[o + 2], r->b[o + 3]};
            tr_dots_1x4(x, f, inputs, inputs, s);
            for (int c = 0; c < 4; c++)
                tr_put(r, at + o + c, o + c, s[c]);
        }
        for (; o < outputs; o++, f += inputs)
            tr_put(r, at + o, o, tr_dot8(x, f, r->b[o], inputs));
    }
}

/* Sizes of a convolution. */
typedef struct {
    int n, ci, h, wi, co, oh, ow, kh, kw, sh, sw, ph, pw, groups;
} tr_shape;

/* The window of one pixel, with zeros outside of the map. */
TR_ALONE void tr_column(int8_t *to, const int8_t *x, const tr_shape *c, int cig, int top, int left)
{
    const int plane = c->h * c->wi, kw = c->kw;
    const int kx0 = left < 0 ? -left : 0, kx1 = c->wi - left < kw ? c->wi - left : kw;
    const int ky0 = top < 0 ? -top : 0, ky1 = c->h - top < c->kh ? c->h - top : c->kh;
    const int8_t *from = x + top * c->wi + left;
    if (kx0 == 0 && kx1 == 3 && kw == 3 && ky0 == 0 && ky1 == 3 && c->kh == 3) {
        const int wi = c->wi;
        for (int k = 0; k < cig; k++, from += plane, to += 9) {
            const int8_t *second = from + wi, *third = second + wi;
            to[0] = from[0], to[1] = from[1], to[2] = from[2];
            to[3] = second[0], to[4] = second[1], to[5] = second[2];
            to[6] = third[0], to[7] = third[1], to[8] = third[2];
        }
        return;
    }
    if (kx1 - kx0 < kw || ky1 - ky0 < c->kh)
        __builtin_memset(to, 0, (unsigned)(cig * c->kh * kw));
    for (int k = 0; k < cig; k++, from += plane, to += c->kh * kw)
        for (int ky = ky0; ky < ky1; ky++) {
            const int8_t *row = from + ky * c->wi;
            int8_t *here = to + ky * kw;
            for (int kx = kx0; kx < kx1; kx++)
                here[kx] = row[kx];
        }
}

/* The windows of pixels `at` and, where there is one, the next. */
TR_ALONE void tr_columns(int8_t *to, const int8_t *x, const tr_shape *c, int cig, int taps, int at, int pixels)
{
    if (c->kh * c->kw == 1 && c->sh * c->sw == 1 && c->ph + c->pw == 0) {
        const int plane = c->h * c->wi;
        const int8_t *from = x + at;
        if (pixels == 2)
            for (int k = 0; k < cig; k++, from += plane) {
                to[k] = from[0];
                to[taps + k] = from[1];
            }
        else
            for (int k = 0; k < cig; k++, from += plane)
                to[k] = from[0];
        return;
    }
    for (int p = 0; p < pixels; p++, to += taps)
        tr_column(to, x, c, cig, (at + p) / c->ow * c->sh - c->ph, (at + p) % c->ow * c->sw - c->pw);
}

/* A convolution whose windows are laid out on the stack, one or two at a time. */
static inline void tr_conv_columns(const int8_t *x, const int8_t *w, const tr_results *r, const tr_shape *c, int both)
{
    const int cig = c->ci / c->groups, cog = c->co / c->groups, taps = cig * c->kh * c->kw, all = c->oh * c->ow;
    int8_t columns[both ? 2 * taps : taps];
    for (int i = 0; i < c->n; i++)
        for (int g = 0; g < c->groups; g++) {
            const int8_t *in = x + (i * c->ci + g * cig) * c->h * c->wi;
            for (int at = 0; at < all;) {
                const int pixels = both && at + 1 < all ? 2 : 1;
                tr_columns(columns, in, c, cig, taps, at, pixels);
                const int8_t *f = w + g * cog * taps;
                int o = g * cog, to = (i * c->co + o) * all + at;
                const int end = o + cog;
                if (pixels == 2)
                    for (; o + 2 <= end; o += 2, f += 2 * taps, to += 2 * all) {
                        int32_t s[4] = {r->b[o], r->b[o + 1], r->b[o], r->b[o + 1]};
                        tr_dots_2x2(columns, columns + taps, f, f + taps, taps, s);
                        tr_put(r, to, o, s[0]);
                        tr_put(r, to + 1, o, s[2]);
                        tr_put(r, to + all, o + 1, s[1]);
                        tr_put(r, to + all + 1, o + 1, s[3]);
                    }
                else
                    for (; o + 4 <= end; o += 4, f += 4 * taps, to += 4 * all) {
                        int32_t s[4] = {r->b[o], r->b[o + 1], r->b[o + 2], r->b[o + 3]};
                        tr_dots_1x4(columns, f, taps, taps, s);
                        for (int k = 0; k < 4; k++)
                            tr_put(r, to + k * all, o + k, s[k]);
                    }
                for (; o < end; o++, f += taps, to += all)
                    for (int p = 0; p < pixels; p++)
                        tr_put(r, to + p, o, tr_dot8(columns + p * taps, f, r->b[o], taps));
                at += pixels;
            }
        }
}

/* One row of outputs of a channel whose windows have one plane, from rows of the map with their padding. */
static inline void tr_depth_row(const int8_t *const *rows, const int8_t *f, const tr_results *r, const tr_shape *c,
                                int channel, int to)
{
    int ox = 0;
#ifdef __ARM_FEATURE_DSP
    if (c->kw == 3 && c->kh == 3) {
        int32_t outer[3], inner[3];
        for (int ky = 0; ky < 3; ky++) {
            outer[ky] = (int32_t)((uint32_t)(uint16_t)f[3 * ky] | (uint32_t)f[3 * ky + 2] << 16);
            inner[ky] = (uint16_t)f[3 * ky + 1];
        }
        if (c->sw == 1) {
            const int8_t *p = rows[0], *q = rows[1], *s = rows[2];
            for (; ox + 2 <= c->ow; ox += 2, p += 2, q += 2, s += 2) {
                const uint32_t u = tr_word(p), v = tr_word(q), z = tr_word(s);
                int32_t a = r->b[channel], b = a, even = tr_even(u), odd = tr_odd(u);
                a = tr_pairs(odd, inner[0], tr_pairs(even, outer[0], a));
                b = tr_pairs(odd, outer[0], tr_pairs(even, (int32_t)((uint32_t)inner[0] << 16), b));
                even = tr_even(v), odd = tr_odd(v);
                a = tr_pairs(odd, inner[1], tr_pairs(even, outer[1], a));
                b = tr_pairs(odd, outer[1], tr_pairs(even, (int32_t)((uint32_t)inner[1] << 16), b));
                even = tr_even(z), odd = tr_odd(z);
                a = tr_pairs(odd, inner[2], tr_pairs(even, outer[2], a));
                b = tr_pairs(odd, outer[2], tr_pairs(even, (int32_t)((uint32_t)inner[2] << 16), b));
                tr_put(r, to + ox, channel, a);
                tr_put(r, to + ox + 1, channel, b);
            }
        }
        for (; ox < c->ow; ox++) {
            int32_t sum = r->b[channel];
            for (int ky = 0; ky < 3; ky++) {
                const uint32_t word = tr_word(rows[ky] + ox * c->sw);
                sum = tr_pairs(tr_odd(word), inner[ky], tr_pairs(tr_even(word), outer[ky], sum));
            }
            tr_put(r, to + ox, channel, sum);
        }
        return;
    }
#endif
    for (; ox < c->ow; ox++) {
        int32_t sum = r->b[channel];
        for (int ky = 0; ky < c->kh; ky++)
            sum = tr_dot8(rows[ky] + ox * c->sw, f + ky * c->kw, sum, c->kw);
        tr_put(r, to + ox, channel, sum);
    }
}

/* A convolution whose windows have one plane: rows of it lie on the stack, with their padding. */
static inline void tr_conv_depth(const int8_t *x, const int8_t *w, const tr_results *r, const tr_shape *c, int width)
{
    const int cog = c->co / c->groups;
    int8_t space[c->kh * width];
    const int8_t *rows[c->kh];
    const int copied = c->pw + c->wi < width ? c->wi : width - c->pw;
    for (int i = 0; i < c->n; i++)
        for (int o = 0; o < c->co; o++) {
            const int8_t *in = x + (i * c->ci + o / cog) * c->h * c->wi;
            int filled = 0;
            __builtin_memset(space, 0, sizeof space);
            for (int oy = 0; oy < c->oh; oy++) {
                for (int ky = 0; ky < c->kh; ky++) {
                    const int row = oy * c->sh + ky; /* padding counts */
                    int8_t *to = space + row % c->kh * width;
                    rows[ky] = to;
                    if (row < filled)
                        continue;
                    filled = row + 1;
                    if (row >= c->ph && row - c->ph < c->h)
                        __builtin_memcpy(to + c->pw, in + (row - c->ph) * c->wi, (unsigned)copied);
                    else
                        __builtin_memset(to, 0, (unsigned)width);
                }
                tr_depth_row(rows, w + o * c->kh * c->kw, r, c, o, ((i * c->co + o) * c->oh + oy) * c->ow);
            }
        }
}

/* A convolution: the first of these forms whose windows fit into the stack. */
static inline void tr_conv(const int8_t *x, const int8_t *w, const tr_results *r, const tr_shape *c)
{
    const int cig = c->ci / c->groups, cog = c->co / c->groups, taps = cig * c->kh * c->kw;
    const int width = ((c->ow - 1) * c->sw + c->kw + 3) / 4 * 4 + 4;
    if (cig == 1 && c->groups > 1 && c->kh * (width + 4) <= TR_COLUMNS) {
        tr_conv_depth(x, w, r, c, width);
    } else if (taps <= TR_COLUMNS) {
        tr_conv_columns(x, w, r, c, 2 * taps <= TR_COLUMNS);
    } else {
        int at = 0;
        for (int i = 0; i < c->n; i++)
            for (int o = 0; o < c->co; o++) {
                const int8_t *in = x + (i * c->ci + o / cog * cig) * c->h * c->wi, *f = w + o * taps;
                for (int oy = 0; oy < c->oh; oy++)
                    for (int ox = 0; ox < c->ow; ox++, at++)
                        tr_put(r, at, o,
                               tr_window(in, f, r->b[o], cig, c->h, c->wi, c->kh, c->kw, oy * c->sh - c->ph,
                                         ox * c->sw - c->pw));
            }
    }
}

#endif
