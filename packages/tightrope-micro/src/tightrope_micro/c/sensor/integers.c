
void s_quantize(const float *x, const float *center, const float *ratio, int8_t *y, int n)
{
    for (int k = 0; k < n; k++) {
        const float moved = (x[k] - center[k]) * ratio[k], v = moved + (moved < 0.0f ? -0.5f : 0.5f);
        y[k] = (int8_t)(v < -128.0f ? -128.0f : v > 127.0f ? 127.0f : v);
    }
}

void s_scores(const int16_t *x, float unit, float *y, int n)
{
    for (int k = 0; k < n; k++)
        y[k] = unit * (float)x[k];
}

