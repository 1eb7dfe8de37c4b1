/* The gradient of what a dropout has left. */
void k_dropout_backward(const float *g, const uint8_t *kept, float *y, int n, float scale)
{
    for (int k = 0; k < n; k++)
        y[k] = kept[k] ? g[k] * scale : 0.0f;
}
