/* A function of one 8-bit number, looked up; the result may lie over the input. */
void k_q_table(const int8_t *x, const int8_t *table, int8_t *y, int count)
{
    for (int k = 0; k < count; k++)
        y[k] = table[x[k] + 128];
}
