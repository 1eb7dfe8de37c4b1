/* Dense layer of 8-bit numbers; the sums take 32 bits, the result 8 or, where it is wide, 16. */
void k_q_linear(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, void *y, int wide, int rows,
                int inputs, int outputs, int pre, int shift, int low, int high)
{
    const tr_results results = {b, m, 0, 0, y, wide, pre, shift, low, high};
    tr_dense(x, w, &results, rows, inputs, outputs);
}
