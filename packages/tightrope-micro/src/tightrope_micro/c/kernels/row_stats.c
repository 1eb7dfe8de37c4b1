/* For every row its mean, then for every row one over its standard deviation. */
void k_row_stats(const float *x, float *stats, int n, int size, float eps)
{
    for (int i = 0; i < n; i++) {
        float sum = 0.0f, squares = 0.0f;
        for (int k = 0; k < size; k++)
            sum += x[i * size + k];
        const float mean = sum / (float)size;
        for (int k = 0; k < size; k++)
            squares += (x[i * size + k] - mean) * (x[i * size + k] - mean);
        stats[i] = mean;
        stats[n + i] = 1.0f / tr_sqrt(squares / (float)size + eps);
    }
}
