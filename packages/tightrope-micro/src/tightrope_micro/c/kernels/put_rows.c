/* Rows of a map into their place in the whole one: `planes` times `rows` rows of `size` bytes, from `first` on. */
void k_put_rows(const void *x, void *y, int planes, int rows, int size, int first, int all)
{
    const unsigned char *from = x;
    for (int p = 0; p < planes; p++) {
        unsigned char *to = (unsigned char *)y + (p * all + first) * size;
        for (int k = 0; k < rows * size; k++)
            *to++ = *from++;
    }
}
