/* Gradient of a layer norm's input; the result may be g or x. */
void k_layer_norm_input(const float *g, const float *x, const float *stats, const float *w, float *dx, int n,
                        int size)
{
    for (int i = 0; i < n; i++) {
        const float mean = stats[i], inverse = stats[n + i];
        float plain = 0.0f, scaled = 0.0f;
        for (int k = 0; k < size; k++) {
            const float part = g[i * size + k] * (w ? w[k] : 1.0f);
            plain += part;
            scaled += part * (x[i * size + k] - mean) * inverse;
        }
        plain /= (float)size;
        scaled /= (float)size;
        for (int k = 0; k < size; k++) {
            const int at = i * size + k;
            const float part = g[at] * (w ? w[k] : 1.0f);
            dx[at] = (part - plain - (x[at] - mean) * inverse * scaled) * inverse;
        }
    }
}
