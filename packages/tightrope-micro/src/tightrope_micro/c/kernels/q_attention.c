/* Attention of 8-bit heads that lie side by side in every row; one row of scores, then of shares, at a time. */
void k_q_attention(const int8_t *q, const int8_t *k, const int8_t *v, int8_t *y, uint8_t *room, int n, int heads,
                   int rows, int keys, int size, int m, int pre, int shift, int by, int before, int behind,
                   void (*softmax)(const int8_t *, uint8_t *, uint32_t))
{
    int8_t *scores = (int8_t *)room;
    uint8_t *shares = room + keys;
    const int step = heads * size;
    for (int i = 0; i < n; i++, q += rows * step, y += rows * step, k += keys * step, v += keys * step)
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < rows; r++) {
                const int8_t *one = q + r * step + h * size;
                for (int c = 0; c < keys; c++) {
                    int32_t sum = 0;
                    for (int d = 0; d < size; d++)
                        sum += one[d] * k[c * step + h * size + d];
                    scores[c] = (int8_t)tr_requantize(sum, m, pre, shift, INT8_MIN, INT8_MAX);
                }
                softmax(scores, shares, 1);
                for (int d = 0; d < size; d++) {
                    int32_t sum = 0;
                    for (int c = 0; c < keys; c++)
                        sum += shares[c] * v[c * step + h * size + d];
                    y[r * step + h * size + d] = (int8_t)tr_requantize(sum, by, before, behind, INT8_MIN, INT8_MAX);
                }
            }
}
