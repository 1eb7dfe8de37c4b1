/* A recurrent layer in one direction: 0 = tanh, 1 = ReLU, 2 = GRU, 3 = LSTM. Weights are read once per step and
   sample; `s` has four numbers per unit. Where it `keeps`, the cells of all steps stay. */
void k_recurrent(const float *x, const float *w, const float *u, const float *b, const float *c, const float *h0,
                 const float *c0, float *y, float *h, float *cell, float *s, int steps, int n, int in, int hidden,
                 int kind, int backwards, int keeps)
{
    for (int k = 0; k < n * hidden; k++) {
        h[k] = h0 ? h0[k] : 0.0f;
        if (!keeps)
            cell[k] = c0 ? c0[k] : 0.0f;
    }
    for (int step = 0; step < steps; step++) {
        const int t = backwards ? steps - 1 - step : step;
        for (int i = 0; i < n; i++) {
            const float *from = x + (t * n + i) * in;
            float *state = h + i * hidden, *to = y + (t * n + i) * hidden;
            float *kept = cell + (keeps ? t * n + i : i) * hidden;
            const float *was = !keeps ? kept : step ? kept + (backwards ? n : -n) * hidden : c0 ? c0 + i * hidden : 0;
            tr_gates(s, from, w, b, state, u, c, in, hidden, kind);
            for (int k = 0; k < hidden; k++) {
                if (kind == 2) {
                    const float reset = tr_sigmoid(s[k]), keep = tr_sigmoid(s[k + hidden]);
                    const float made = tr_curve(s[k + 2 * hidden] + reset * s[k + 3 * hidden], 2, 0.0f, 0.0f);
                    state[k] = (1.0f - keep) * made + keep * state[k];
                } else if (kind == 3) {
                    const float gain = tr_sigmoid(s[k]), keep = tr_sigmoid(s[k + hidden]);
                    const float made = tr_curve(s[k + 2 * hidden], 2, 0.0f, 0.0f);
                    kept[k] = keep * (was ? was[k] : 0.0f) + gain * made;
                    state[k] = tr_sigmoid(s[k + 3 * hidden]) * tr_curve(kept[k], 2, 0.0f, 0.0f);
                } else
                    state[k] = kind ? (s[k] > 0.0f ? s[k] : 0.0f) : tr_curve(s[k], 2, 0.0f, 0.0f);
                to[k] = state[k];
            }
        }
    }
}
