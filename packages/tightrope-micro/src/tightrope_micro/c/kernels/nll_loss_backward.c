/* Gradient of the mean of what the right classes have. */
void k_nll_loss_backward(const int32_t *label, float *dx, int rows, int columns)
{
    for (int k = 0; k < rows * columns; k++)
        dx[k] = 0.0f;
    for (int i = 0; i < rows; i++)
        if (label[i] >= 0 && label[i] < columns)
            dx[i * columns + label[i]] = -1.0f / (float)rows;
}
