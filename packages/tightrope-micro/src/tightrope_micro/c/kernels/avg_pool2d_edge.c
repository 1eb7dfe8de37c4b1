/* Mean of windows that may end outside: over what is padded too where `padded` says so, or by a divisor. */
void k_avg_pool2d_edge(const float *x, float *y, int planes, int h, int wi, int oh, int ow, int kh, int kw, int sh,
                       int sw, int ph, int pw, int padded, int divisor)
{
    for (int p = 0; p < planes; p++, x += h * wi)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                const int top = oy * sh - ph, left = ox * sw - pw;
                const int end = top + kh < h + ph ? top + kh : h + ph, right = left + kw < wi + pw ? left + kw : wi + pw;
                float sum = 0.0f;
                int inside = 0;
                for (int iy = top < 0 ? 0 : top; iy < end && iy < h; iy++)
                    for (int ix = left < 0 ? 0 : left; ix < right && ix < wi; ix++, inside++)
                        sum += x[iy * wi + ix];
                *y++ = sum / (float)(divisor ? divisor : padded ? (end - top) * (right - left) : inside);
            }
}
