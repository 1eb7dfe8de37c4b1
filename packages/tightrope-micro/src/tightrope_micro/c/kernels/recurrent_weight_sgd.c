/* Gradient of the weight of a recurrent layer's state, one element at a time, and its update. */
void k_recurrent_weight_sgd(const float *g, const float *y, const float *h0, float *u, float *m, int steps, int n,
                            int rows, int hidden, int backwards, tr_rule rule)
{
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < hidden; k++) {
            float sum = 0.0f;
            for (int step = 0; step < steps; step++) {
                const int t = backwards ? steps - 1 - step : step;
                const float *h = step ? y + (backwards ? t + 1 : t - 1) * n * hidden : h0;
                for (int i = 0; h && i < n; i++)
                    sum += g[(t * n + i) * rows + r] * h[i * hidden + k];
            }
            tr_update(u, m, r * hidden + k, sum, rule);
        }
}
