/* Softmax of rows of 8-bit numbers; powers by how far a number is below the largest, 0 behind the last. */
void k_t_softmax(const int8_t *x, const int32_t *powers, int8_t *y, int rows, int size, int last)
{
    for (int i = 0; i < rows; i++, x += size, y += size) {
        int32_t most = INT8_MIN, sum = 0;
        for (int k = 0; k < size; k++)
            most = x[k] > most ? x[k] : most;
        for (int k = 0; k < size; k++)
            if (most - x[k] <= last)
                sum += tr_divide_plain(powers[most - x[k]], 12);
        const int lead = __builtin_clz((unsigned)sum);
        const int32_t inverse = tr_inverse((int32_t)(((uint32_t)sum << lead) - (1u << 31)));
        for (int k = 0; k < size; k++) {
            const int32_t share = most - x[k] <= last ? tr_high(inverse, powers[most - x[k]]) : 0;
            y[k] = (int8_t)tr_clamp(tr_divide_plain(share, 35 - lead) + INT8_MIN, INT8_MIN, INT8_MAX);
        }
    }
}
