/* Every element of a window gets an equal part of its gradient. */
void k_avg_pool2d_backward(const float *g, float *dx, int planes, int h, int wi, int oh, int ow, int kh, int kw,
                           int sh, int sw)
{
    for (int k = 0; k < planes * h * wi; k++)
        dx[k] = 0.0f;
    for (int p = 0; p < planes; p++)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                const float part = g[(p * oh + oy) * ow + ox] / (float)(kh * kw);
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++)
                        dx[(p * h + oy * sh + ky) * wi + ox * sw + kx] += part;
            }
}
