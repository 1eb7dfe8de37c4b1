/* Softmax of rows of 8 bits, in units of 1 / 32640 in 16 bits or 2 / 255 in 8; `row` has one byte per element. */
void k_q_softmax(const int8_t *x, void *y, uint8_t *row, int wide, int rows, int size,
                 void (*softmax)(const int8_t *, uint8_t *, uint32_t))
{
    int16_t *to = y;
    int8_t *narrow = y;
    for (int i = 0; i < rows; i++, x += size) {
        softmax(x, row, 1);
        for (int k = 0; k < size; k++)
            if (wide)
                *to++ = (int16_t)(row[k] * 128);
            else
                *narrow++ = (int8_t)(row[k] > 253 ? 127 : (row[k] + 1) / 2);
    }
}
