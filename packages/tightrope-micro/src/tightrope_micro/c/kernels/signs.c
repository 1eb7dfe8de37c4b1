/* One bit per element: whether y > 0, the first in the lowest bit. */
void k_signs(const float *y, uint8_t *bits, int n)
{
    for (int k = 0; k < n; k += 8) {
        int found = 0;
        for (int bit = 0; bit < 8 && k + bit < n; bit++)
            found |= (y[k + bit] > 0.0f) << bit;
        bits[k / 8] = (uint8_t)found;
    }
}
