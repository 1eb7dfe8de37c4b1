/* Mean of what the right classes have; a class that is out of range counts as 0. */
void k_nll_loss(const float *logp, const int32_t *label, float *loss, int rows, int columns)
{
    float sum = 0.0f;
    for (int i = 0; i < rows; i++)
        if (label[i] >= 0 && label[i] < columns)
            sum -= logp[i * columns + label[i]];
    *loss = sum / (float)rows;
}
