/* A copy in another order: elements of `bytes` bytes, four sizes and four strides in elements. */
void k_gather(const void *x, void *y, int bytes, int a, int b, int c, int d, int sa, int sb, int sc, int sd, int first)
{
    const unsigned char *from = (const unsigned char *)x + first * bytes;
    unsigned char *to = y;
    for (int i = 0; i < a; i++)
        for (int j = 0; j < b; j++)
            for (int k = 0; k < c; k++)
                for (int l = 0; l < d; l++)
                    for (int byte = 0; byte < bytes; byte++)
                        *to++ = from[(i * sa + j * sb + k * sc + l * sd) * bytes + byte];
}
