/* Mean of squared differences. */
void k_mse_loss(const float *x, const float *target, float *loss, int n)
{
    float sum = 0.0f;
    for (int k = 0; k < n; k++)
        sum += (x[k] - target[k]) * (x[k] - target[k]);
    *loss = sum / (float)n;
}
