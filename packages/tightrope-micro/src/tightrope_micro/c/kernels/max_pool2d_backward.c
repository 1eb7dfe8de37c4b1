/* Gradients go to the places that were largest. */
void k_max_pool2d_backward(const float *g, const uint8_t *place, float *dx, int planes, int h, int wi, int oh,
                           int ow, int kw, int sh, int sw, int ph, int pw)
{
    for (int k = 0; k < planes * h * wi; k++)
        dx[k] = 0.0f;
    for (int p = 0; p < planes; p++)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                const int k = (p * oh + oy) * ow + ox, at = place[k];
                const int iy = oy * sh - ph + at / kw, ix = ox * sw - pw + at % kw;
                dx[(p * h + iy) * wi + ix] += g[k];
            }
}
