/* Mean or largest number of every window, with channels last; what lies outside does not count. */
void k_t_pool2d(const int8_t *x, int8_t *y, int n, int h, int wi, int c, int oh, int ow, int kh, int kw, int sh, int sw,
                int ph, int pw, int largest, int low, int high)
{
    for (int i = 0; i < n; i++, x += h * wi * c)
        for (int at = 0; at < oh * ow; at++) {
            int top, bottom, left, right;
            tr_inside(at / ow * sh - ph, h, kh, &top, &bottom);
            tr_inside(at % ow * sw - pw, wi, kw, &left, &right);
            const int count = (bottom - top) * (right - left);
            for (int k = 0; k < c; k++) {
                int32_t found = largest ? INT8_MIN : 0;
                for (int iy = top; iy < bottom; iy++)
                    for (int ix = left; ix < right; ix++) {
                        const int32_t one = x[(iy * wi + ix) * c + k];
                        found = !largest ? found + one : one > found ? one : found;
                    }
                if (!largest)
                    found = (found + (found > 0 ? count / 2 : -(count / 2))) / count;
                *y++ = (int8_t)tr_clamp(found, low, high);
            }
        }
}
