/* The same row added to every row, in 16 bits of one unit; the result may lie over x. */
void k_q_add_rows(const int16_t *x, const int16_t *row, int16_t *y, int rows, int size, int low, int high)
{
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < size; k++, x++)
            *y++ = (int16_t)tr_clamp(*x + row[k], low, high);
}
