/* Mean and variance of every channel, in two passes; rows are summed before they are added up. */
void k_batch_norm_stats(const float *x, float *stats, int n, int c, int size)
{
    for (int o = 0; o < c; o++) {
        float mean = 0.0f, var = 0.0f;
        for (int i = 0; i < n; i++) {
            float part = 0.0f;
            for (int k = 0; k < size; k++)
                part += x[(i * c + o) * size + k];
            mean += part;
        }
        mean /= (float)(n * size);
        for (int i = 0; i < n; i++) {
            float part = 0.0f;
            for (int k = 0; k < size; k++) {
                const float d = x[(i * c + o) * size + k] - mean;
                part += d * d;
            }
            var += part;
        }
        stats[o] = mean;
        stats[c + o] = var / (float)(n * size);
    }
}
