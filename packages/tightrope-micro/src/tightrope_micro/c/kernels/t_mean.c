/* Mean of 8-bit numbers over `size` numbers that lie `inner` apart. */
void k_t_mean(const int8_t *x, int8_t *y, int outer, int size, int inner, int zx, int m, int shift, int zero)
{
    for (int i = 0; i < outer; i++, x += size * inner)
        for (int k = 0; k < inner; k++) {
            int32_t sum = -zx * size;
            for (int at = 0; at < size; at++)
                sum += x[at * inner + k];
            *y++ = (int8_t)tr_clamp(tr_scale(sum, m, shift) + zero, INT8_MIN, INT8_MAX);
        }
}
