/* g - exp(y) * sum of g, row by row; the result may be g. */
void k_log_softmax_backward(const float *g, const float *y, float *dx, int rows, int columns)
{
    for (int i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (int k = 0; k < columns; k++)
            sum += g[i * columns + k];
        for (int k = 0; k < columns; k++)
            dx[i * columns + k] = g[i * columns + k] - tr_exp(y[i * columns + k]) * sum;
    }
}
