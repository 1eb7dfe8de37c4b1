/* Dense layer added to a stream: y = s + (x w^T + b); the result may lie over the stream. */
void k_linear_add(const float *s, const float *x, const float *w, const float *b, float *y, int rows, int inputs,
                  int outputs)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++)
            y[r * outputs + o] =
                s[r * outputs + o] + ((b ? b[o] : 0.0f) + tr_dot(x + r * inputs, w + o * inputs, inputs));
}
