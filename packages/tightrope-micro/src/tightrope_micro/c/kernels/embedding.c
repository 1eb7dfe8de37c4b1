/* Rows of a table: y[k] = w[index[k]], `size` elements each; an index that is out of range gives 0. */
void k_embedding(const float *w, const int32_t *index, float *y, int n, int rows, int size)
{
    for (int k = 0; k < n; k++) {
        const int inside = index[k] >= 0 && index[k] < rows;
        for (int c = 0; c < size; c++)
            y[k * size + c] = inside ? w[index[k] * size + c] : 0.0f;
    }
}
