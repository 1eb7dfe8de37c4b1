/* From 16 bits to 8. */
void k_q_narrow(const int16_t *x, int8_t *y, int count, int m, int pre, int shift, int low, int high)
{
    for (int k = 0; k < count; k++)
        y[k] = (int8_t)tr_requantize(x[k], m, pre, shift, low, high);
}
