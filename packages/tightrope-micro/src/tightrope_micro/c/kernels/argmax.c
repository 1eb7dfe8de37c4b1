/* Place of the largest of `size` numbers that lie `inner` apart, the first of several. */
void k_argmax(const float *x, int32_t *y, int outer, int size, int inner)
{
    for (int i = 0; i < outer; i++)
        for (int j = 0; j < inner; j++) {
            const float *from = x + i * size * inner + j;
            int32_t best = 0;
            for (int k = 1; k < size; k++)
                best = from[k * inner] > from[best * inner] ? k : best;
            *y++ = best;
        }
}
