/* g times the derivative of GELU at x; the result may be any of the two. */
void k_gelu_backward(const float *g, const float *x, float *dx, int n)
{
    for (int k = 0; k < n; k++) {
        const float share = 0.5f * (1.0f + tr_erf(x[k] * 0.707106781f));
        const float density = 0.398942280f * tr_exp(-0.5f * x[k] * x[k]);
        dx[k] = g[k] * (share + x[k] * density);
    }
}
