/* A function of one number, by its place in the list; the result may lie over the input. */
void k_curve(const float *x, float *y, int n, int kind, float a, float b)
{
    for (int k = 0; k < n; k++)
        y[k] = tr_curve(x[k], kind, a, b);
}
