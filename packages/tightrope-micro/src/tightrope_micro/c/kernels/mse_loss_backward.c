/* Gradient of the mean of squared differences. */
void k_mse_loss_backward(const float *x, const float *target, float *dx, int n)
{
    const float scale = 2.0f / (float)n;
    for (int k = 0; k < n; k++)
        dx[k] = scale * (x[k] - target[k]);
}
