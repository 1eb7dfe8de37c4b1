/* A tensor of bytes inside a larger one of one value: sizes of both, and what is before in each dimension. */
void k_t_pad(const int8_t *x, int8_t *y, int value, int a, int b, int c, int d, int ya, int yb, int yc, int yd, int pa,
             int pb, int pc, int pd)
{
    __builtin_memset(y, value, (unsigned)(ya * yb * yc * yd));
    for (int i = 0; i < a; i++)
        for (int j = 0; j < b; j++)
            for (int k = 0; k < c; k++, x += d)
                __builtin_memcpy(y + (((i + pa) * yb + j + pb) * yc + k + pc) * yd + pd, x, (unsigned)d);
}
