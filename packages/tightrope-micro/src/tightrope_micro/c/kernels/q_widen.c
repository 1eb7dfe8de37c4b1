/* From 8 bits to 16. */
void k_q_widen(const int8_t *x, int16_t *y, int count, int m, int pre, int shift, int low, int high)
{
    for (int k = 0; k < count; k++)
        y[k] = (int16_t)tr_requantize(x[k], m, pre, shift, low, high);
}
