/* Gradients of attention's three inputs; the shares come from the saved logarithms, one at a time. */
void k_attention_backward(const float *g, const float *q, const float *k, const float *v, const float *y,
                          const float *logs, float *dq, float *dk, float *dv, int batch, int heads, int rows,
                          int keys, int size, float scale, int causal)
{
    const int step = heads * size;
    for (int c = 0; c < batch * keys * step; c++)
        dk[c] = dv[c] = 0.0f;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < rows; i++) {
                const int row = (b * rows + i) * step + h * size, end = causal && i + 1 < keys ? i + 1 : keys;
                const float mean = tr_dot(g + row, y + row, size), log = logs[(b * heads + h) * rows + i];
                for (int c = 0; c < size; c++)
                    dq[row + c] = 0.0f;
                for (int j = 0; j < end; j++) {
                    const int at = (b * keys + j) * step + h * size;
                    const float share = tr_exp(scale * tr_dot(q + row, k + at, size) - log);
                    const float slope = scale * share * (tr_dot(g + row, v + at, size) - mean);
                    for (int c = 0; c < size; c++) {
                        dv[at + c] += share * g[row + c];
                        dq[row + c] += slope * k[at + c];
                        dk[at + c] += slope * q[row + c];
                    }
                }
            }
}
