/* Largest number of every window. */
void k_max_pool2d_only(const float *x, float *y, int planes, int h, int wi, int oh, int ow, int kh, int kw, int sh,
                       int sw, int ph, int pw)
{
    for (int p = 0; p < planes; p++, x += h * wi)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                float most = -__builtin_inff();
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++) {
                        const int iy = oy * sh - ph + ky, ix = ox * sw - pw + kx;
                        if (iy >= 0 && iy < h && ix >= 0 && ix < wi && x[iy * wi + ix] > most)
                            most = x[iy * wi + ix];
                    }
                *y++ = most;
            }
}
