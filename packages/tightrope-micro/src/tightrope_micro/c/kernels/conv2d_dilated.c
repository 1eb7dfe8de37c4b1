/* Convolution whose window elements lie (dh, dw) apart. */
void k_conv2d_dilated(const float *x, const float *w, const float *b, float *y, int n, int ci, int h, int wi, int co,
                      int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw, int dh, int dw, int groups)
{
    const int cig = ci / groups, cog = co / groups;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < co; o++)
            for (int oy = 0; oy < oh; oy++)
                for (int ox = 0; ox < ow; ox++) {
                    float sum = b ? b[o] : 0.0f;
                    for (int c = 0; c < cig; c++)
                        for (int ky = 0; ky < kh; ky++) {
                            const int iy = oy * sh - ph + ky * dh;
                            if (iy < 0 || iy >= h)
                                continue;
                            const float *row = x + ((i * ci + o / cog * cig + c) * h + iy) * wi;
                            for (int kx = 0; kx < kw; kx++) {
                                const int ix = ox * sw - pw + kx * dw;
                                if (ix >= 0 && ix < wi)
                                    sum += row[ix] * w[((o * cig + c) * kh + ky) * kw + kx];
                            }
                        }
                    *y++ = sum;
                }
}
