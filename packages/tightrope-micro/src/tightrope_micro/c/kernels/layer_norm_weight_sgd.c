/* Gradient of a layer norm's weight, one element at a time, and its update. */
void k_layer_norm_weight_sgd(const float *g, const float *x, const float *stats, float *w, float *m, int n,
                             int size, tr_rule rule)
{
    for (int k = 0; k < size; k++) {
        float sum = 0.0f;
        for (int i = 0; i < n; i++)
            sum += g[i * size + k] * (x[i * size + k] - stats[i]) * stats[n + i];
        tr_update(w, m, k, sum, rule);
    }
}
