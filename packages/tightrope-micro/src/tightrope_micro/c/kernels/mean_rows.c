/* The mean over the middle dimension of [n][rows][size]. */
void k_mean_rows(const float *x, float *y, int n, int rows, int size)
{
    for (int i = 0; i < n; i++)
        for (int c = 0; c < size; c++) {
            float sum = 0.0f;
            for (int k = 0; k < rows; k++)
                sum += x[(i * rows + k) * size + c];
            y[i * size + c] = sum / (float)rows;
        }
}
