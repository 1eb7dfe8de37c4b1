/* Real numbers as 8-bit ones: the nearest, halves away from zero. */
void k_t_quantize(const float *x, int8_t *y, int size, float unit, int zero)
{
    for (int k = 0; k < size; k++) {
        float q = x[k] / unit;
        q = q > -1024.0f ? q : -1024.0f;
        q = q < 1024.0f ? q : 1024.0f;
        const int32_t whole = (int32_t)q;
        const float rest = q - (float)whole;
        y[k] = (int8_t)tr_clamp(whole + (rest >= 0.5f) - (rest <= -0.5f) + zero, INT8_MIN, INT8_MAX);
    }
}
