/* Largest 8-bit number of every window. */
void k_q_max_pool2d(const int8_t *x, int8_t *y, int planes, int h, int wi, int oh, int ow, int kh, int kw, int sh,
                    int sw, int ph, int pw)
{
    for (int p = 0; p < planes; p++, x += h * wi)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                int32_t most = INT8_MIN;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++) {
                        const int iy = oy * sh - ph + ky, ix = ox * sw - pw + kx;
                        if (iy >= 0 && iy < h && ix >= 0 && ix < wi && x[iy * wi + ix] > most)
                            most = x[iy * wi + ix];
                    }
                *y++ = (int8_t)most;
            }
}
