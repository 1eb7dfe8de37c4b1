/* One step more, and what AdamW takes from the count t: -rate / (1 - beta1^t), sqrt(1 - beta2^t), in double. */
void k_adamw_rates(float *step, float *rates, double rate, double beta1, double beta2)
{
    step[0] += 1.0f;
    double first = 1.0, second = 1.0;
    for (uint32_t t = (uint32_t)step[0]; t; t >>= 1, beta1 *= beta1, beta2 *= beta2)
        if (t & 1u) {
            first *= beta1;
            second *= beta2;
        }
    const double x = 1.0 - second;
    double root = (double)tr_sqrt((float)x);
    for (int k = 0; k < 2; k++)
        root = 0.5 * (root + x / root);
    rates[0] = (float)(-rate / (1.0 - first));
    rates[1] = (float)root;
}
