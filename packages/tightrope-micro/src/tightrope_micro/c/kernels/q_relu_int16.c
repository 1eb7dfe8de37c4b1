/* max(x, 0) of 16-bit numbers; the result may lie over x. */
void k_q_relu_int16(const int16_t *x, int16_t *y, int count)
{
    for (int k = 0; k < count; k++)
        y[k] = x[k] > 0 ? x[k] : 0;
}
