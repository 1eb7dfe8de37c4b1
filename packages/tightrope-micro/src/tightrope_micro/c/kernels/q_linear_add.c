/* Dense layer of 8-bit numbers, added to a stream of 16 bits; the result may lie over the stream. */
void k_q_linear_add(const int16_t *stream, const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m,
                    int16_t *y, int rows, int inputs, int outputs, int pre, int shift, int low, int high)
{
    int at = 0;
    for (int r = 0; r < rows; r++, x += inputs)
        for (int o = 0; o < outputs; o++, at++) {
            int32_t sum = b[o];
            for (int k = 0; k < inputs; k++)
                sum += x[k] * w[o * inputs + k];
            const int32_t value = tr_requantize(sum, m[o], pre, shift, INT16_MIN, INT16_MAX);
            y[at] = (int16_t)tr_clamp(stream[at] + value, low, high);
        }
}
