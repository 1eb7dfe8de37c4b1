/* Convolution of 8-bit numbers with channels last, in groups of them. */
void k_t_conv2d(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, const int8_t *shifts, int8_t *y,
                int n, int h, int wi, int ci, int oh, int ow, int co, int kh, int kw, int groups, int sh, int sw,
                int dh, int dw, int ph, int pw, int each, int zx, int zy, int low, int high)
{
    const int cig = ci / groups, cog = co / groups;
    const tr_results r = {b, m, 0, shifts, y, 0, each, zy, low, high};
    const tr_window_shape c = {h, wi, ci, kh, kw, dh, dw, cig, zx};
    const int taps = kh * kw * cig, all = oh * ow, whole = kh * kw == 1 && ph + pw == 0;
    const int fits = whole ? 2 : taps <= TR_COLUMNS / 2 ? 2 : taps <= TR_COLUMNS;
    int8_t columns[whole || !fits ? 1 : fits * taps];
    for (int i = 0, to = 0; i < n; i++, x += h * wi * ci)
        for (int at = 0, pixels; at < all; at += pixels, to += pixels * co) {
            const int8_t *from[2], *f = w, *in = x;
            pixels = fits == 2 && at + 1 < all ? 2 : 1;
            for (int o = 0, last = cog; o < co; last += cog, in += cig) {
                for (int p = 0; p < pixels && fits; p++) {
                    const int top = (at + p) / ow * sh - ph, left = (at + p) % ow * sw - pw;
                    from[p] = whole ? in + (top * wi + left) * ci : columns + p * taps;
                    if (!whole)
                        tr_patch(columns + p * taps, in, &c, top, left);
                }
                if (pixels == 2)
                    for (; o + 2 <= last; o += 2, f += 2 * taps) {
                        int32_t s[4] = {b[o], b[o + 1], b[o], b[o + 1]};
                        tr_dots_2x2(from[0], from[1], f, f + taps, taps, s);
                        tr_put_all(&r, to + o, o, 2, 2, co, s);
                    }
                for (; fits && o + 4 <= last && pixels == 1; o += 4, f += 4 * taps) {
                    int32_t s[4] = {b[o], b[o + 1], b[o + 2], b[o + 3]};
                    tr_dots_1x4(from[0], f, taps, taps, s);
                    tr_put_all(&r, to + o, o, 4, 1, 0, s);
                }
                for (; o < last; o++, f += taps)
                    for (int p = 0; p < pixels; p++) {
                        const int32_t sum = fits ? tr_dot8(from[p], f, b[o], taps)
                                                 : tr_patch_sum(in, f, b[o], &c, at / ow * sh - ph, at % ow * sw - pw);
                        tr_put_all(&r, to + o + p * co, o, 1, 1, 0, &sum);
                    }
            }
        }
}
