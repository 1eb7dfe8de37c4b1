/* Gradient of a dense layer's input. */
void k_linear_input(const float *g, const float *w, float *dx, int n, int in, int out)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < in; k++) {
            float sum = 0.0f;
            for (int o = 0; o < out; o++)
                sum += g[i * out + o] * w[o * in + k];
            dx[i * in + k] = sum;
        }
}
