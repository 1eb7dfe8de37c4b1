/* max(x, 0) of 8-bit numbers; the result may lie over x. */
void k_q_relu_int8(const int8_t *x, int8_t *y, int count)
{
    for (int k = 0; k < count; k++)
        y[k] = x[k] > 0 ? x[k] : 0;
}
