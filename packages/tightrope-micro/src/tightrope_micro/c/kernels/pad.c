/* A tensor inside a larger one of one value: sizes, sizes of the larger one, and what is before in each dimension. */
void k_pad(const float *x, float *y, float value, int a, int b, int c, int d, int ya, int yb, int yc, int yd, int pa,
           int pb, int pc, int pd)
{
    for (int i = -pa; i < ya - pa; i++)
        for (int j = -pb; j < yb - pb; j++)
            for (int k = -pc; k < yc - pc; k++)
                for (int l = -pd; l < yd - pd; l++) {
                    const int inside = i >= 0 && i < a && j >= 0 && j < b && k >= 0 && k < c && l >= 0 && l < d;
                    *y++ = inside ? x[((i * b + j) * c + k) * d + l] : value;
                }
}
