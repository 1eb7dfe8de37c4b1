/* 8-bit numbers in other units; with a sign or, where it is said, without. */
void k_t_rescale(const void *x, void *y, int size, int plain_x, int plain_y, int zx, int m, int shift, int zero,
                 int low, int high)
{
    for (int k = 0; k < size; k++) {
        const int32_t given = plain_x ? ((const uint8_t *)x)[k] : ((const int8_t *)x)[k];
        const int32_t value = tr_clamp(tr_scale(given - zx, m, shift) + zero, low, high);
        if (plain_y)
            ((uint8_t *)y)[k] = (uint8_t)value;
        else
            ((int8_t *)y)[k] = (int8_t)value;
    }
}
