/* Gradient of a table, one element at a time, over all places that read its row, and its update. */
void k_embedding_sgd(const float *g, const int32_t *index, float *w, float *m, int n, int rows, int size,
                     tr_rule rule)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < size; c++) {
            float sum = 0.0f;
            for (int k = 0; k < n; k++)
                if (index[k] == r)
                    sum += g[k * size + c];
            tr_update(w, m, r * size + c, sum, rule);
        }
}
