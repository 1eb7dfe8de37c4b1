/* A larger map: of the nearest elements, or between the four around; rows and columns of the input per one. */
void k_upsample2d(const float *x, float *y, int planes, int h, int wi, int oh, int ow, int between, int corners,
                  float down, float across)
{
    for (int p = 0; p < planes; p++, x += h * wi)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                const float half = between && !corners ? 0.5f : 0.0f;
                float fy = ((float)oy + half) * down - half, fx = ((float)ox + half) * across - half;
                fy = fy < 0.0f ? 0.0f : fy;
                fx = fx < 0.0f ? 0.0f : fx;
                int iy = (int)fy, ix = (int)fx;
                iy = iy < h - 1 ? iy : h - 1;
                ix = ix < wi - 1 ? ix : wi - 1;
                const float *one = x + iy * wi + ix;
                if (!between) {
                    *y++ = *one;
                    continue;
                }
                const int below = iy < h - 1 ? wi : 0, right = ix < wi - 1;
                const float ry = fy - (float)iy, rx = fx - (float)ix;
                const float top = one[0] + (one[right] - one[0]) * rx;
                const float bottom = one[below] + (one[below + right] - one[below]) * rx;
                *y++ = top + (bottom - top) * ry;
            }
}
