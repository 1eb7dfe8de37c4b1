/* Sum, mean, largest or smallest of `size` numbers that lie `inner` apart. */
void k_reduce(const float *x, float *y, int outer, int size, int inner, int kind)
{
    for (int i = 0; i < outer; i++)
        for (int j = 0; j < inner; j++) {
            const float *from = x + i * size * inner + j;
            float found = from[0];
            for (int k = 1; k < size; k++) {
                const float v = from[k * inner];
                found = kind < 2 ? found + v : kind == 2 ? (v > found ? v : found) : (v < found ? v : found);
            }
            *y++ = kind == 1 ? found / (float)size : found;
        }
}
