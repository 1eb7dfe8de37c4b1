/* Gradient of a batch norm's input; the result may be g or x. */
void k_batch_norm_input(const float *g, const float *x, const float *stats, const float *sums, const float *w,
                        float *dx, int n, int c, int size, float eps)
{
    const float count = (float)(n * size);
    for (int i = 0; i < n; i++)
        for (int o = 0; o < c; o++) {
            const float inverse = 1.0f / tr_sqrt(stats[c + o] + eps), scale = (w ? w[o] : 1.0f) * inverse;
            const float mean = sums[o] / count, slope = sums[c + o] / count * inverse;
            for (int k = 0; k < size; k++) {
                const int at = (i * c + o) * size + k;
                dx[at] = (g[at] - mean - (x[at] - stats[o]) * slope) * scale;
            }
        }
}
