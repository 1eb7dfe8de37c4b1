/* a + b; the result may be any of the two, then it is an accumulation in place. */
void k_add(const float *a, const float *b, float *y, int n)
{
    for (int k = 0; k < n; k++)
        y[k] = a[k] + b[k];
}
