/* Running mean and unbiased running variance. */
void k_batch_norm_running(const float *stats, float *mean, float *var, int c, float momentum, int count)
{
    const float unbiased = (float)count / (float)(count > 1 ? count - 1 : 1);
    for (int o = 0; o < c; o++) {
        mean[o] += momentum * (stats[o] - mean[o]);
        var[o] += momentum * (stats[c + o] * unbiased - var[o]);
    }
}
