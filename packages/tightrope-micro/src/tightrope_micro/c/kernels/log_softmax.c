/* Logarithm of the softmax of every row; x and y may be one. */
void k_log_softmax(const float *x, float *y, int rows, int columns)
{
    for (int i = 0; i < rows; i++) {
        const float *from = x + i * columns;
        float most = from[0], sum = 0.0f;
        for (int k = 1; k < columns; k++)
            most = from[k] > most ? from[k] : most;
        for (int k = 0; k < columns; k++)
            sum += tr_exp(from[k] - most);
        const float shift = most + tr_log(sum);
        for (int k = 0; k < columns; k++)
            y[i * columns + k] = from[k] - shift;
    }
}
