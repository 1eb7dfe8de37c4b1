/* Update from a gradient that is there. */
void k_vector_sgd(const float *g, float *w, float *m, int n, tr_rule rule)
{
    for (int k = 0; k < n; k++)
        tr_update(w, m, k, g[k], rule);
}
