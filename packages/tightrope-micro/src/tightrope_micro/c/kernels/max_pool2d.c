/* Largest element of every window, and its place in the window. */
void k_max_pool2d(const float *x, float *y, uint8_t *place, int planes, int h, int wi, int oh, int ow, int kh,
                  int kw, int sh, int sw, int ph, int pw)
{
    for (int p = 0; p < planes; p++)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                float best = 0.0f;
                int at = -1;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++) {
                        const int iy = oy * sh - ph + ky, ix = ox * sw - pw + kx;
                        if (iy < 0 || iy >= h || ix < 0 || ix >= wi)
                            continue;
                        const float v = x[(p * h + iy) * wi + ix];
                        if (at < 0 || v > best) {
                            best = v;
                            at = ky * kw + kx;
                        }
                    }
                y[(p * oh + oy) * ow + ox] = best;
                place[(p * oh + oy) * ow + ox] = (uint8_t)at;
            }
}
