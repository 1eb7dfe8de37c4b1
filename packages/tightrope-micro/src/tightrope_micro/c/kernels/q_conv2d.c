/* Convolution of 8-bit numbers; the sums take 32 bits, the result 8 or, where it is wide, 16. */
void k_q_conv2d(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, void *y, int wide,
                int n, int ci, int h, int wi, int co, int oh, int ow, int kh, int kw, int sh, int sw, int ph,
                int pw, int groups, int pre, int shift, int low, int high)
{
    const int cig = ci / groups, cog = co / groups;
    int at = 0;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < co; o++) {
            const int8_t *in = x + (i * ci + o / cog * cig) * h * wi, *f = w + o * cig * kh * kw;
            for (int oy = 0; oy < oh; oy++)
                for (int ox = 0; ox < ow; ox++, at++) {
                    const int32_t sum = tr_window(in, f, b[o], cig, h, wi, kh, kw, oy * sh - ph, ox * sw - pw);
                    const int32_t value = tr_requantize(sum, m[o], pre, shift, low, high);
                    if (wide)
                        ((int16_t *)y)[at] = (int16_t)value;
                    else
                        ((int8_t *)y)[at] = (int8_t)value;
                }
        }
}
