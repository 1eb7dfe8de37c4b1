/* Every row of the middle dimension gets its share of the mean's gradient. */
void k_mean_rows_backward(const float *g, float *dx, int n, int rows, int size)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < rows; k++)
            for (int c = 0; c < size; c++)
                dx[(i * rows + k) * size + c] = g[i * size + c] / (float)rows;
}
