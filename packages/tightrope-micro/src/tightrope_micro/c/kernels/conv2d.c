/* Convolution: y = x * w + b, row by row. Of an output of `rows` channels it makes `co`, from `begin` on. Of the
   `every` channels of the weight's rows it takes those behind `skip`; what they give is added where asked. */
void k_conv2d(const float *x, const float *w, const float *b, float *y, int n, int ci, int h, int wi, int co,
              int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw, int groups,
              int begin, int rows, int skip, int every, int added)
{
    const int cig = ci / groups, cog = co / groups;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < co; o++) {
            float *out = y + (i * rows + begin + o) * oh * ow;
            const float start = b ? b[begin + o] : 0.0f;
            for (int k = 0; k < oh * ow && !added; k++)
                out[k] = start;
            for (int c = 0; c < cig; c++) {
                const float *in = x + (i * ci + o / cog * cig + c) * h * wi;
                const float *f = w + (o * every + skip + c) * kh * kw;
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
