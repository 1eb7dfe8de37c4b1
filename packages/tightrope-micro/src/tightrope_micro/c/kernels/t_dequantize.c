/* 8-bit numbers as real ones. */
void k_t_dequantize(const int8_t *x, float *y, int size, float unit, int zero)
{
    for (int k = 0; k < size; k++)
        y[k] = unit * (float)(x[k] - zero);
}
