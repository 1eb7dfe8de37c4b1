/* Depthwise convolution of 8-bit numbers with channels last; weights of a channel lie together. */
void k_t_depthwise_conv2d(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, const int8_t *shifts,
                          int8_t *y, int n, int h, int wi, int ci, int oh, int ow, int co, int kh, int kw, int sh,
                          int sw, int dh, int dw, int ph, int pw, int each, int zx, int zy, int low, int high)
{
    const tr_shape shape = {n, ci, h, wi, co, oh, ow, kh, kw, sh, sw, ph, pw, ci};
    const tr_window_shape c = {h, wi, ci, kh, kw, dh, dw, 1, zx};
    const int width = ((ow - 1) * sw + kw + 3) / 4 * 4 + 4, room = kh * (width + 4) + 4 * ow;
    const int fits = dh * dw == 1 && room <= TR_COLUMNS;
    int8_t space[fits ? kh * width : 1];
    const int8_t *rows[kh];
    int32_t sums[fits ? ow : 1];
    __builtin_memset(space, zx, sizeof space); /* what lies to the left and right stays */
    const int copied = pw + wi < width ? wi : width - pw;
    for (int i = 0; i < n; i++, x += h * wi * ci, y += oh * ow * co)
        for (int o = 0; o < co; o++) {
            const tr_results r = {b, m, 0, shifts, y + o, sums, each, zy, low, high};
            const int8_t *in = x + o / (co / ci), *f = w + o * kh * kw;
            int filled = 0;
            for (int oy = 0; oy < oh; oy++) {
                for (int ky = 0; ky < kh && fits; ky++) {
                    const int row = oy * sh + ky; /* padding counts */
                    int8_t *to = space + row % kh * width;
                    rows[ky] = to;
                    if (row < filled)
                        continue;
                    filled = row + 1;
                    const int inside = row >= ph && row - ph < h;
                    const int8_t *from = in + (inside ? (row - ph) * wi * ci : 0);
                    for (int ix = 0; ix < copied; ix++, from += ci)
                        to[pw + ix] = (int8_t)(inside ? *from : zx);
                }
                if (fits)
                    tr_depth_row(rows, f, &r, &shape, o, 0);
                for (int ox = 0; ox < ow && !fits; ox++) {
                    sums[0] = tr_patch_sum(in, f, b[o], &c, oy * sh - ph, ox * sw - pw);
                    tr_put_all(&r, (oy * ow + ox) * co, o, 1, 1, 0, sums);
                }
                if (fits)
                    tr_put_all(&r, oy * ow * co, o, 1, ow, co, sums);
            }
        }
}
