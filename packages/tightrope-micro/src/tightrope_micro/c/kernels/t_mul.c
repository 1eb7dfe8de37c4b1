/* Product of two tensors of 8-bit numbers: sizes of the result, and steps of both; 0 repeats a number. */
void k_t_mul(const int8_t *x, const int8_t *z, int8_t *y, int a, int b, int c, int d, int xa, int xb, int xc, int xd,
             int za, int zb, int zc, int zd, int zx, int zz, int zero, int m, int s, int low, int high)
{
    for (int i = 0; i < a; i++)
        for (int j = 0; j < b; j++)
            for (int k = 0; k < c; k++) {
                const int8_t *one = x + i * xa + j * xb + k * xc, *other = z + i * za + j * zb + k * zc;
                for (int l = 0; l < d; l++, one += xd, other += zd)
                    *y++ = (int8_t)tr_clamp(tr_scale((*one - zx) * (*other - zz), m, s) + zero, low, high);
            }
}
