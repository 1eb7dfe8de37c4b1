/* Softmax of `size` numbers that lie `inner` apart, or its logarithm; the result may lie over the input. */
void k_softmax(const float *x, float *y, int outer, int size, int inner, int logs)
{
    for (int i = 0; i < outer; i++)
        for (int j = 0; j < inner; j++) {
            const float *from = x + i * size * inner + j;
            float *to = y + i * size * inner + j;
            float most = from[0], sum = 0.0f;
            for (int k = 1; k < size; k++)
                most = from[k * inner] > most ? from[k * inner] : most;
            for (int k = 0; k < size; k++) {
                const float less = from[k * inner] - most, share = tr_exp(less);
                sum += share;
                to[k * inner] = logs ? less : share;
            }
            const float whole = logs ? tr_log(sum) : 1.0f / sum;
            for (int k = 0; k < size; k++)
                to[k * inner] = logs ? to[k * inner] - whole : to[k * inner] * whole;
        }
}
