/* Products of matrices: n times [a][b] and [b][c]. */
void k_bmm(const float *x, const float *y, float *z, int n, int a, int b, int c)
{
    for (int i = 0; i < n; i++, y += b * c)
        for (int j = 0; j < a; j++, x += b)
            for (int k = 0; k < c; k++) {
                float sum = 0.0f;
                for (int l = 0; l < b; l++)
                    sum += x[l] * y[l * c + k];
                *z++ = sum;
            }
}
