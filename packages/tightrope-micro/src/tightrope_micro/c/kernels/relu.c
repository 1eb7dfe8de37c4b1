/* max(x, 0); x and y may be one. */
void k_relu(const float *x, float *y, int n)
{
    for (int k = 0; k < n; k++)
        y[k] = x[k] > 0.0f ? x[k] : 0.0f;
}
