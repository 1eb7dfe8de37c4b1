/* Gradient of a convolution's input: what `co` of `rows` channels give, from `begin` on; added where asked.
   Of the `every` channels of the weight's rows it takes those behind `skip`. */
void k_conv2d_input(const float *g, const float *w, float *dx, int n, int ci, int h, int wi, int co, int oh,
                    int ow, int kh, int kw, int sh, int sw, int ph, int pw, int groups,
                    int begin, int rows, int skip, int every, int added)
{
    const int cig = ci / groups, cog = co / groups;
    for (int k = 0; k < n * ci * h * wi && !added; k++)
        dx[k] = 0.0f;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < co; o++) {
            const float *from = g + (i * rows + begin + o) * oh * ow;
            for (int c = 0; c < cig; c++) {
                float *to = dx + (i * ci + o / cog * cig + c) * h * wi;
                const float *f = w + (o * every + skip + c) * kh * kw;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++) {
                        const float v = f[ky * kw + kx];
                        const int first = tr_first(kx, pw, sw), last = tr_last(kx, pw, sw, wi, ow);
                        for (int oy = tr_first(ky, ph, sh); oy < tr_last(ky, ph, sh, h, oh); oy++) {
                            float *row = to + (oy * sh - ph + ky) * wi - pw + kx;
                            for (int ox = first; ox < last; ox++)
                                row[ox * sw] += v * from[oy * ow + ox];
                        }
                    }
            }
        }
}
