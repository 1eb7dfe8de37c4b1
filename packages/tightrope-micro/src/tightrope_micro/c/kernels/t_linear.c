/* Dense layer of 8-bit numbers. */
void k_t_linear(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, const int8_t *shifts,
                const int32_t *starts, int8_t *y, int rows, int inputs, int outputs, int each, int zero, int low,
                int high)
{
    const tr_results results = {b, m, starts, shifts, y, 0, each, zero, low, high};
    tr_dense(x, w, &results, rows, inputs, outputs);
}
