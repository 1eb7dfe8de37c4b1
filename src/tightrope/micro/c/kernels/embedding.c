/* Rows of a table: y[k] = w[index[k]], `size` elements each. */
void k_embedding(const float *w, const int32_t *index, float *y, int n, int size)
{
    for (int k = 0; k < n; k++)
        for (int c = 0; c < size; c++)
            y[k * size + c] = w[index[k] * size + c];
}
