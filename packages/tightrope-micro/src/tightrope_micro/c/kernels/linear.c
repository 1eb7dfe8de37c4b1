/* Dense layer: y = x w^T + b. Of an output of `rows` columns it makes `out`, from `begin` on. */
void k_linear(const float *x, const float *w, const float *b, float *y, int n, int in, int out,
              int begin, int rows)
{
    for (int i = 0; i < n; i++)
        for (int o = 0; o < out; o++) {
            float sum = 0.0f;
            for (int k = 0; k < in; k++)
                sum += x[i * in + k] * w[o * in + k];
            y[i * rows + begin + o] = b ? sum + b[begin + o] : sum;
        }
}
