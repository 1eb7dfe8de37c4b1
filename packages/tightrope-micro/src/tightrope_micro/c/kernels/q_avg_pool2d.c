/* Mean of every window of 8-bit numbers. */
void k_q_avg_pool2d(const int8_t *x, int8_t *y, int planes, int h, int wi, int oh, int ow, int kh, int kw, int sh,
                    int sw, int m, int pre, int shift, int low, int high)
{
    for (int p = 0; p < planes; p++, x += h * wi)
        for (int oy = 0; oy < oh; oy++)
            for (int ox = 0; ox < ow; ox++) {
                int32_t sum = 0;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++)
                        sum += x[(oy * sh + ky) * wi + ox * sw + kx];
                *y++ = (int8_t)tr_requantize(sum, m, pre, shift, low, high);
            }
}
