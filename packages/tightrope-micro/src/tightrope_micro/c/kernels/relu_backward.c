/* g where y > 0, else 0; the result may be any of the two. */
void k_relu_backward(const float *g, const float *y, float *dx, int n)
{
    for (int k = 0; k < n; k++)
        dx[k] = y[k] > 0.0f ? g[k] : 0.0f;
}
