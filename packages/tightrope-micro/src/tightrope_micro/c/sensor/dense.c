/* Dense layer of 8-bit numbers; the sums take 32 bits, the result 8 or, where it is wide, 16. */
void k_q_linear(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, void *y, int wide, int rows,
                int inputs, int outputs, int pre, int shift, int low, int high)
{
    int at = 0;
    for (int r = 0; r < rows; r++, x += inputs)
        for (int o = 0; o < outputs; o++, at++) {
            int32_t sum = b[o];
            for (int k = 0; k < inputs; k++)
                sum += x[k] * w[o * inputs + k];
            const int32_t value = tr_requantize(sum, m[o], pre, shift, low, high);
            if (wide)
                ((int16_t *)y)[at] = (int16_t)value;
            else
                ((int8_t *)y)[at] = (int8_t)value;
        }
}
