/* Two values, one behind the other. */
void k_cat(const void *a, const void *b, void *y, int first, int second)
{
    unsigned char *to = y;
    for (int k = 0; k < first; k++)
        *to++ = ((const unsigned char *)a)[k];
    for (int k = 0; k < second; k++)
        *to++ = ((const unsigned char *)b)[k];
}
