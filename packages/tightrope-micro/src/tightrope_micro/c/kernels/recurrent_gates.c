/* Gradients of what the gates of a recurrent layer are computed from: `ga` of the part of what comes in, `gs` of the
   part of the state (NULL: the same). Gates are computed again from the states `y` and, of an LSTM, all cells; the
   gradients gy, gh and gc of states, last state and cells may be NULL. `s` has 2 n + 4 numbers per unit. */
void k_recurrent_gates(const float *x, const float *w, const float *u, const float *b, const float *c, const float *h0,
                       const float *c0, const float *y, const float *cells, const float *gy, const float *gh,
                       const float *gc, float *ga, float *gs, float *s, int steps, int n, int in, int hidden, int kind,
                       int backwards)
{
    const int rows = kind < 2 ? hidden : (kind + 1) * hidden;
    float *dh = s, *dc = s + n * hidden, *p = s + 2 * n * hidden;
    for (int k = 0; k < n * hidden; k++) {
        dh[k] = gh ? gh[k] : 0.0f;
        dc[k] = 0.0f;
    }
    for (int step = steps - 1; step >= 0; step--) {
        const int t = backwards ? steps - 1 - step : step, before = backwards ? t + 1 : t - 1;
        for (int i = 0; i < n; i++) {
            const int at = (t * n + i) * hidden, last = (before * n + i) * hidden;
            const float *h = step ? y + last : h0 ? h0 + i * hidden : 0;
            const float *from = x + (t * n + i) * in;
            float *carry = dh + i * hidden, *a = ga + (t * n + i) * rows, *z = gs ? gs + (t * n + i) * rows : a;
            tr_gates(p, from, w, b, h, u, c, in, hidden, kind);
            for (int k = 0; k < hidden; k++) {
                const float g = carry[k] + (gy ? gy[at + k] : 0.0f);
                carry[k] = 0.0f;
                if (kind == 2) {
                    const float reset = tr_sigmoid(p[k]), keep = tr_sigmoid(p[k + hidden]);
                    const float made = tr_curve(p[k + 2 * hidden] + reset * p[k + 3 * hidden], 2, 0.0f, 0.0f);
                    const float slope = g * (1.0f - keep) * (1.0f - made * made);
                    a[k] = z[k] = slope * p[k + 3 * hidden] * reset * (1.0f - reset);
                    a[k + hidden] = z[k + hidden] = g * ((h ? h[k] : 0.0f) - made) * keep * (1.0f - keep);
                    a[k + 2 * hidden] = slope;
                    z[k + 2 * hidden] = slope * reset;
                    carry[k] = g * keep;
                } else if (kind == 3) {
                    const float gain = tr_sigmoid(p[k]), keep = tr_sigmoid(p[k + hidden]);
                    const float made = tr_curve(p[k + 2 * hidden], 2, 0.0f, 0.0f), out = tr_sigmoid(p[k + 3 * hidden]);
                    const float was = step ? cells[last + k] : c0 ? c0[i * hidden + k] : 0.0f;
                    const float bent = tr_curve(cells[at + k], 2, 0.0f, 0.0f);
                    float *kept = dc + i * hidden + k;
                    const float flow = *kept + (gc ? gc[at + k] : 0.0f) + g * out * (1.0f - bent * bent);
                    a[k] = flow * made * gain * (1.0f - gain);
                    a[k + hidden] = flow * was * keep * (1.0f - keep);
                    a[k + 2 * hidden] = flow * gain * (1.0f - made * made);
                    a[k + 3 * hidden] = g * bent * out * (1.0f - out);
                    *kept = flow * keep;
                } else
                    a[k] = kind ? (y[at + k] > 0.0f ? g : 0.0f) : g * (1.0f - y[at + k] * y[at + k]);
            }
            for (int r = 0; r < rows; r++)
                for (int k = 0; k < hidden; k++)
                    carry[k] += z[r] * u[r * hidden + k];
        }
    }
}
