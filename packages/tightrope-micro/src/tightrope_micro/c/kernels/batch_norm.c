/* (x - mean) / sqrt(var + eps) * w + b; x and y may be one. */
void k_batch_norm(const float *x, const float *stats, const float *w, const float *b, float *y, int n, int c,
                  int size, float eps)
{
    for (int i = 0; i < n; i++)
        for (int o = 0; o < c; o++) {
            const float scale = (w ? w[o] : 1.0f) / tr_sqrt(stats[c + o] + eps), shift = b ? b[o] : 0.0f;
            for (int k = 0; k < size; k++)
                y[(i * c + o) * size + k] = (x[(i * c + o) * size + k] - stats[o]) * scale + shift;
        }
}
