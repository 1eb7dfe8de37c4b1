/* Gradient of a convolution's weight, one element at a time, and its update: no gradient is stored.
   Of the `every` channels of the weight's rows those behind `skip` are updated. */
void k_conv2d_weight_sgd(const float *g, const float *x, float *w, float *m, int n, int ci, int h, int wi,
                         int co, int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw, int groups,
                         int begin, int rows, int skip, int every, tr_rule rule)
{
    const int cig = ci / groups, cog = co / groups;
    for (int o = 0; o < co; o++)
        for (int c = 0; c < cig; c++)
            for (int ky = 0; ky < kh; ky++)
                for (int kx = 0; kx < kw; kx++) {
                    const int first = tr_first(kx, pw, sw), last = tr_last(kx, pw, sw, wi, ow);
                    float sum = 0.0f;
                    for (int i = 0; i < n; i++) {
                        const float *from = g + (i * rows + begin + o) * oh * ow;
                        const float *in = x + (i * ci + o / cog * cig + c) * h * wi;
                        for (int oy = tr_first(ky, ph, sh); oy < tr_last(ky, ph, sh, h, oh); oy++) {
                            const float *row = in + (oy * sh - ph + ky) * wi - pw + kx;
                            float part = 0.0f;
                            for (int ox = first; ox < last; ox++)
                                part += from[oy * ow + ox] * row[ox * sw];
                            sum += part;
                        }
                    }
                    tr_update(w, m, ((o * every + skip + c) * kh + ky) * kw + kx, sum, rule);
                }
}
