/* Dense layer of 8-bit numbers, added to a stream of 16 bits; the result may lie over the stream. */
void k_q_linear_add(const int16_t *stream, const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m,
                    int16_t *y, int rows, int inputs, int outputs, int pre, int shift, int low, int high)
{
    const tr_results results = {b, m, stream, y, 1, pre, shift, low, high};
    tr_dense(x, w, &results, rows, inputs, outputs);
}
