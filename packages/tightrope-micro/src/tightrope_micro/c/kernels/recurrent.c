/* A recurrent layer in one direction: 0 = tanh, 1 = ReLU, 2 = GRU, 3 = LSTM. Weights are read once per step and
   sample; `s` has four numbers per unit. */
void k_recurrent(const float *x, const float *w, const float *u, const float *b, const float *c, const float *h0,
                 const float *c0, float *y, float *h, float *cell, float *s, int steps, int n, int in, int hidden,
                 int kind, int backwards)
{
    const int rows = kind < 2 ? hidden : (kind + 1) * hidden;
    for (int k = 0; k < n * hidden; k++) {
        h[k] = h0[k];
        cell[k] = c0 ? c0[k] : 0.0f;
    }
    for (int step = 0; step < steps; step++) {
        const int t = backwards ? steps - 1 - step : step;
        for (int i = 0; i < n; i++) {
            const float *from = x + (t * n + i) * in;
            float *state = h + i * hidden, *kept = cell + i * hidden, *to = y + (t * n + i) * hidden;
            for (int r = 0; r < rows; r++) {
                const float a = tr_dot(from, w + r * in, in) + (b ? b[r] : 0.0f);
                const float z = tr_dot(state, u + r * hidden, hidden) + (c ? c[r] : 0.0f);
                s[r] = a + z;
                if (kind == 2 && r >= 2 * hidden) { /* the candidate needs both sums */
                    s[r] = a;
                    s[r + hidden] = z;
                }
            }
            for (int k = 0; k < hidden; k++) {
                if (kind == 2) {
                    const float reset = tr_curve(s[k], 3, 0.0f, 0.0f), keep = tr_curve(s[k + hidden], 3, 0.0f, 0.0f);
                    const float made = tr_curve(s[k + 2 * hidden] + reset * s[k + 3 * hidden], 2, 0.0f, 0.0f);
                    state[k] = (1.0f - keep) * made + keep * state[k];
                } else if (kind == 3) {
                    const float gain = tr_curve(s[k], 3, 0.0f, 0.0f), keep = tr_curve(s[k + hidden], 3, 0.0f, 0.0f);
                    const float made = tr_curve(s[k + 2 * hidden], 2, 0.0f, 0.0f);
                    kept[k] = keep * kept[k] + gain * made;
                    state[k] = tr_curve(s[k + 3 * hidden], 3, 0.0f, 0.0f) * tr_curve(kept[k], 2, 0.0f, 0.0f);
                } else
                    state[k] = kind ? (s[k] > 0.0f ? s[k] : 0.0f) : tr_curve(s[k], 2, 0.0f, 0.0f);
                to[k] = state[k];
            }
        }
    }
}
