/*
 * Softmax attention, one row of one head at a time: scores are computed twice and never stored.
 * Tensors are [batch][row][head][size]; `logs` gets the logarithm of every row's sum of exponentials.
 */
void k_attention(const float *q, const float *k, const float *v, float *y, float *logs, int batch, int heads,
                 int rows, int keys, int size, float scale, int causal)
{
    const int step = heads * size;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < rows; i++) {
                const float *from = q + (b * rows + i) * step + h * size;
                const int end = causal && i + 1 < keys ? i + 1 : keys;
                float *to = y + (b * rows + i) * step + h * size;
                float most = -3.0e38f, sum = 0.0f;
                for (int j = 0; j < end; j++) {
                    const float score = scale * tr_dot(from, k + (b * keys + j) * step + h * size, size);
                    most = score > most ? score : most;
                }
                for (int c = 0; c < size; c++)
                    to[c] = 0.0f;
                for (int j = 0; j < end; j++) {
                    const int at = (b * keys + j) * step + h * size;
                    const float share = tr_exp(scale * tr_dot(from, k + at, size) - most);
                    sum += share;
                    for (int c = 0; c < size; c++)
                        to[c] += share * v[at + c];
                }
                for (int c = 0; c < size; c++)
                    to[c] /= sum;
                logs[(b * heads + h) * rows + i] = most + tr_log(sum);
            }
}
