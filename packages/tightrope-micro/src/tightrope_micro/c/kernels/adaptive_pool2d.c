/* Mean or largest element of windows that fill a map. */
void k_adaptive_pool2d(const float *x, float *y, int planes, int h, int wi, int oh, int ow, int largest)
{
    for (int p = 0; p < planes; p++, x += h * wi)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                const int top = oy * h / oh, end = ((oy + 1) * h + oh - 1) / oh;
                const int left = ox * wi / ow, right = ((ox + 1) * wi + ow - 1) / ow;
                float sum = 0.0f, most = x[top * wi + left];
                for (int iy = top; iy < end; iy++)
                    for (int ix = left; ix < right; ix++) {
                        sum += x[iy * wi + ix];
                        most = x[iy * wi + ix] > most ? x[iy * wi + ix] : most;
                    }
                *y++ = largest ? most : sum / (float)((end - top) * (right - left));
            }
}
