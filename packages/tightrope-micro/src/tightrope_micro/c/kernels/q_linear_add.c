/* Dense layer of 8-bit numbers, added to a stream as `k_q_conv2d_add` adds. */
void k_q_linear_add(const void *stream, const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m,
                    void *y, int narrow, int wide, int rows, int inputs, int outputs, int pre, int shift, int low,
                    int high)
{
    const tr_results results = {b, m, narrow ? m + outputs : 0, stream, y, wide, pre, shift, low, high};
    tr_dense(x, w, &results, rows, inputs, outputs);
}
