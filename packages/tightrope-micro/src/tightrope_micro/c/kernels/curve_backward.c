/* The gradient of a curve, from its input or, of tanh and sigmoid, its result; it may lie over either. */
void k_curve_backward(const float *g, const float *x, float *y, int n, int kind, float a, float b)
{
    for (int k = 0; k < n; k++) {
        const float v = x[k], s = kind == 4 ? tr_sigmoid(v) : 0.0f;
        float slope = 0.0f;
        if (kind == 1)
            slope = v > a && v < b ? 1.0f : 0.0f;
        else if (kind == 2)
            slope = 1.0f - v * v;
        else if (kind == 3)
            slope = v * (1.0f - v);
        else if (kind == 4)
            slope = s * (1.0f + v * (1.0f - s));
        else if (kind == 5)
            slope = v <= -3.0f ? 0.0f : v < 3.0f ? v / 3.0f + 0.5f : 1.0f;
        else if (kind == 7)
            slope = v > 0.0f ? 1.0f : a;
        y[k] = g[k] * slope;
    }
}
