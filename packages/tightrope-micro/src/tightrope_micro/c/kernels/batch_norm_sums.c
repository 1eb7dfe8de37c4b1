/* For every channel the sum of g, then the sum of g times the normalized input. */
void k_batch_norm_sums(const float *g, const float *x, const float *stats, float *sums, int n, int c, int size,
                       float eps)
{
    for (int o = 0; o < c; o++) {
        float plain = 0.0f, scaled = 0.0f;
        for (int i = 0; i < n; i++) {
            float one = 0.0f, two = 0.0f;
            for (int k = 0; k < size; k++) {
                const int at = (i * c + o) * size + k;
                one += g[at];
                two += g[at] * (x[at] - stats[o]);
            }
            plain += one;
            scaled += two;
        }
        sums[o] = plain;
        sums[c + o] = scaled / tr_sqrt(stats[c + o] + eps);
    }
}
