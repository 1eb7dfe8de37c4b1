/* Mean of every window; windows lie inside. */
void k_avg_pool2d(const float *x, float *y, int planes, int h, int wi, int oh, int ow, int kh, int kw, int sh,
                  int sw)
{
    for (int p = 0; p < planes; p++)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                float sum = 0.0f;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++)
                        sum += x[(p * h + oy * sh + ky) * wi + ox * sw + kx];
                y[(p * oh + oy) * ow + ox] = sum / (float)(kh * kw);
            }
}
