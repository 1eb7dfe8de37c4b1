/* Gradient of a bias, the sum over everything but its channel, and its update. */
void k_channel_sum_sgd(const float *g, float *b, float *m, int n, int c, int size, tr_rule rule)
{
    for (int o = 0; o < c; o++) {
        float sum = 0.0f;
        for (int i = 0; i < n; i++) {
            const float *from = g + (i * c + o) * size;
            float part = 0.0f;
            for (int k = 0; k < size; k++)
                part += from[k];
            sum += part;
        }
        tr_update(b, m, o, sum, rule);
    }
}
