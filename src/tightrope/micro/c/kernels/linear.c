/* Dense layer: y = x w^T + b. */
void k_linear(const float *x, const float *w, const float *b, float *y, int n, int in, int out)
{
    for (int i = 0; i < n; i++)
        for (int o = 0; o < out; o++) {
            float sum = 0.0f;
            for (int k = 0; k < in; k++)
                sum += x[i * in + k] * w[o * in + k];
            y[i * out + o] = b ? sum + b[o] : sum;
        }
}
