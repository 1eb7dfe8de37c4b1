/* Gradient of a dense layer's weight, one element at a time, and its update. */
void k_linear_weight_sgd(const float *g, const float *x, float *w, float *m, int n, int in, int out,
                         int begin, int rows,                         tr_rule rule)
{
    for (int o = 0; o < out; o++)
        for (int k = 0; k < in; k++) {
            float sum = 0.0f;
            for (int i = 0; i < n; i++)
                sum += g[i * rows + begin + o] * x[i * in + k];
            tr_update(w, m, o * in + k, sum, rule);
        }
}
