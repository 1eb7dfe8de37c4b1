/* Two tensors behind each other, `outer` times: bytes of a part of each. */
void k_cat(const void *a, const void *b, void *y, int outer, int one, int other)
{
    const unsigned char *first = a, *second = b;
    unsigned char *to = y;
    for (int i = 0; i < outer; i++) {
        for (int k = 0; k < one; k++)
            *to++ = *first++;
        for (int k = 0; k < other; k++)
            *to++ = *second++;
    }
}
