/* Convolution of 8-bit numbers, added to a stream of 16 bits or, where it is narrow, 8, with its factors behind m. The
   result may lie over a stream of its type. */
void k_q_conv2d_add(const void *stream, const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m,
                    void *y, int narrow, int wide, int n, int ci, int h, int wi, int co, int oh, int ow, int kh,
                    int kw, int sh, int sw, int ph, int pw, int groups, int pre, int shift, int low, int high)
{
    const tr_results results = {b, m, narrow ? m + co : 0, stream, y, wide, pre, shift, low, high};
    const tr_shape shape = {n, ci, h, wi, co, oh, ow, kh, kw, sh, sw, ph, pw, groups};
    tr_conv(x, w, &results, &shape);
}
