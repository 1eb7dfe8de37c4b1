/* Convolution added to a stream: y = s + (x * w + b); the result may lie over the stream. */
void k_conv2d_add(const float *s, const float *x, const float *w, const float *b, float *y, int n, int ci, int h,
                  int wi, int co, int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw, int groups)
{
    const int cig = ci / groups, cog = co / groups;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < co; o++) {
            float *out = y + (i * co + o) * oh * ow;
            const float *from = s + (i * co + o) * oh * ow;
            const float start = b ? b[o] : 0.0f;
            for (int k = 0; k < oh * ow; k++)
                out[k] = from[k] + start;
            for (int c = 0; c < cig; c++) {
                const float *in = x + (i * ci + o / cog * cig + c) * h * wi;
                const float *f = w + (o * cig + c) * kh * kw;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++) {
                        const float v = f[ky * kw + kx];
                        const int first = tr_first(kx, pw, sw), last = tr_last(kx, pw, sw, wi, ow);
                        for (int oy = tr_first(ky, ph, sh); oy < tr_last(ky, ph, sh, h, oh); oy++) {
                            const float *row = in + (oy * sh - ph + ky) * wi - pw + kx;
                            for (int ox = first; ox < last; ox++)
                                out[oy * ow + ox] += v * row[ox * sw];
                        }
                    }
            }
        }
}
