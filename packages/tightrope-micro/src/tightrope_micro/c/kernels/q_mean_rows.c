/* Mean over the rows of 8-bit numbers. */
void k_q_mean_rows(const int8_t *x, int8_t *y, int n, int rows, int size, int m, int pre, int shift, int low, int high)
{
    for (int i = 0; i < n; i++, x += rows * size)
        for (int k = 0; k < size; k++) {
            int32_t sum = 0;
            for (int r = 0; r < rows; r++)
                sum += x[r * size + k];
            *y++ = (int8_t)tr_requantize(sum, m, pre, shift, low, high);
        }
}
