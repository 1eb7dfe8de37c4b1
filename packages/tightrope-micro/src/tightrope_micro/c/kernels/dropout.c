/* Elements that stay, times what makes up for the others; of 2^24 draws `out` leave one out. */
void k_dropout(const float *x, const int32_t *key, float *y, uint8_t *kept, int n, int number, int out, float scale)
{
    const uint32_t from = tr_mixed((uint32_t)*key * 0x9e3779b9u + (uint32_t)number);
    for (int k = 0; k < n; k++) {
        kept[k] = (tr_mixed(from ^ (uint32_t)k) >> 8) >= (uint32_t)out;
        y[k] = kept[k] ? x[k] * scale : 0.0f;
    }
}
