/* Convolution of 8-bit numbers; the sums take 32 bits, the result 8 or, where it is wide, 16. */
void k_q_conv2d(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, void *y, int wide,
                int n, int ci, int h, int wi, int co, int oh, int ow, int kh, int kw, int sh, int sw, int ph,
                int pw, int groups, int pre, int shift, int low, int high)
{
    const tr_results results = {b, m, 0, 0, y, wide, pre, shift, low, high};
    const tr_shape shape = {n, ci, h, wi, co, oh, ow, kh, kw, sh, sw, ph, pw, groups};
    tr_conv(x, w, &results, &shape);
}
