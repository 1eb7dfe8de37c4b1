/* Sum of two 16-bit values of one unit; of 8-bit ones, where they are narrow, each times a factor, in the unit of y. The
   result may lie over either of its type. */
void k_q_add(const void *a, const void *b, void *y, int narrow, int wide, int count, int ka, int kb, int m, int pre,
             int shift, int low, int high)
{
    for (int k = 0; k < count; k++) {
        const int32_t sum = narrow ? ((const int8_t *)a)[k] * ka + ((const int8_t *)b)[k] * kb
                                   : ((const int16_t *)a)[k] + ((const int16_t *)b)[k];
        const int32_t value = tr_requantize(sum, m, pre, shift, low, high);
        if (wide)
            ((int16_t *)y)[k] = (int16_t)value;
        else
            ((int8_t *)y)[k] = (int8_t)value;
    }
}
