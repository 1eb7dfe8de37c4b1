/* Every group of channels of every sample to mean 0 and variance 1, then weight and bias of the channel. */
void k_group_norm(const float *x, const float *w, const float *b, float *y, int n, int channels, int inner, int groups,
                  float eps)
{
    const int count = channels / groups, size = count * inner;
    for (int g = 0; g < n * groups; g++, x += size, y += size) {
        float mean = 0.0f, var = 0.0f;
        for (int k = 0; k < size; k++)
            mean += x[k];
        mean /= (float)size;
        for (int k = 0; k < size; k++)
            var += (x[k] - mean) * (x[k] - mean);
        const float scale = 1.0f / tr_sqrt(var / (float)size + eps);
        for (int k = 0; k < size; k++) {
            const int c = g % groups * count + k / inner;
            y[k] = (x[k] - mean) * scale * (w ? w[c] : 1.0f) + (b ? b[c] : 0.0f);
        }
    }
}
