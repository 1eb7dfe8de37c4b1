/* A function of two numbers; each input has a stride of 0 where it is spread. The result may lie over an input. */
void k_blend(const float *x, const float *y, float *z, int kind, int a, int b, int c, int d, int xa, int xb, int xc,
             int xd, int ya, int yb, int yc, int yd)
{
    for (int i = 0; i < a; i++)
        for (int j = 0; j < b; j++)
            for (int k = 0; k < c; k++)
                for (int l = 0; l < d; l++) {
                    const float p = x[i * xa + j * xb + k * xc + l * xd], q = y[i * ya + j * yb + k * yc + l * yd];
                    *z++ = kind == 0   ? p + q
                           : kind == 1 ? p - q
                           : kind == 2 ? p * q
                           : kind == 3 ? p / q
                           : kind == 4 ? (p > q ? p : q)
                           : kind == 5 ? (p < q ? p : q)
                                       : (p > 0.0f ? p : q * p);
                }
}
