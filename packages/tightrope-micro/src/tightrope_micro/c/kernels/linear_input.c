/* Gradient of a dense layer's input: what `out` of `rows` columns give, from `begin` on; added where asked. */
void k_linear_input(const float *g, const float *w, float *dx, int n, int in, int out, int begin,
                    int rows, int added)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < in; k++) {
            float sum = added ? dx[i * in + k] : 0.0f;
            for (int o = 0; o < out; o++)
                sum += g[i * rows + begin + o] * w[o * in + k];
            dx[i * in + k] = sum;
        }
}
