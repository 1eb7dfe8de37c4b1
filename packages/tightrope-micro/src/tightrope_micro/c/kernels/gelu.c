/* x times the normal distribution's share below x; the result may be x. */
void k_gelu(const float *x, float *y, int n)
{
    for (int k = 0; k < n; k++)
        y[k] = 0.5f * x[k] * (1.0f + tr_erf(x[k] * 0.707106781f));
}
