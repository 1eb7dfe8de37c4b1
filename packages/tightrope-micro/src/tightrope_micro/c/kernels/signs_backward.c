/* g where the bit of its element is set, else 0; the result may be g. */
void k_signs_backward(const float *g, const uint8_t *bits, float *dx, int n)
{
    for (int k = 0; k < n; k++)
        dx[k] = bits[k / 8] >> k % 8 & 1 ? g[k] : 0.0f;
}
