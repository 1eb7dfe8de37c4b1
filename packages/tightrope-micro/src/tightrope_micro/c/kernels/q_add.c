/* Sum of two 16-bit values of one unit; the result may lie over either. */
void k_q_add(const int16_t *a, const int16_t *b, int16_t *y, int count, int low, int high)
{
    for (int k = 0; k < count; k++)
        y[k] = (int16_t)tr_clamp(a[k] + b[k], low, high);
}
