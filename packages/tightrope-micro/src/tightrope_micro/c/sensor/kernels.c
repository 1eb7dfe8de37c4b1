#include "sensor_kernels.h"

#include "support.h"

void s_axis(const float *window, float *x, int n, int axes, float scale, int center)
{
    float sum = 0.0f;
    for (int k = 0; k < n; k++) {
        x[k] = scale * window[k * axes];
        sum += x[k];
    }
    if (!center)
        return;
    const float mean = sum / (float)n;
    for (int k = 0; k < n; k++)
        x[k] -= mean;
}

void s_filter(float *x, int n, const float *sections, int count)
{
    for (const float *s = sections; s < sections + 5 * count; s += 5) {
        float first = 0.0f, second = 0.0f;
        for (int k = 0; k < n; k++) {
            const float in = x[k], out = s[0] * in + first;
            first = s[1] * in - s[3] * out + second;
            second = s[2] * in - s[4] * out;
            x[k] = out;
        }
    }
}

void s_statistics(const float *x, int n, uint32_t which, float *out)
{
    float found[7];
    float sum = 0.0f, squares = 0.0f, least = x[0], most = x[0];
    for (int k = 0; k < n; k++) {
        sum += x[k];
        squares += x[k] * x[k];
        least = x[k] < least ? x[k] : least;
        most = x[k] > most ? x[k] : most;
    }
    const float mean = sum / (float)n;
    float second = 0.0f, third = 0.0f, fourth = 0.0f;
    for (int k = 0; k < n; k++) {
        const float d = x[k] - mean, d2 = d * d;
        second += d2;
        third += d2 * d;
        fourth += d2 * d2;
    }
    second /= (float)n;
    const int some = second > 1e-12f;
    const float safe = some ? second : 1.0f, deviation = tr_sqrt(second);
    found[0] = mean;
    found[1] = least;
    found[2] = most;
    found[3] = tr_sqrt(squares / (float)n);
    found[4] = deviation;
    found[5] = some ? third / (float)n / (safe * deviation) : 0.0f;
    found[6] = some ? fourth / (float)n / (safe * safe) - 3.0f : 0.0f;
    for (int k = 0; k < 7; k++)
        if (which >> k & 1u)
            *out++ = found[k];
}

/* Fourier transform of n complex numbers in place; a half turn of 2n has the cosines 0 .. n. */
static void transform(float *z, int n, const float *cosines)
{
    for (int i = 1, j = 0; i < n; i++) {
        int bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            const float re = z[2 * i], im = z[2 * i + 1];
            z[2 * i] = z[2 * j];
            z[2 * i + 1] = z[2 * j + 1];
            z[2 * j] = re;
            z[2 * j + 1] = im;
        }
    }
    for (int half = 1; half < n; half *= 2)
        for (int k = 0; k < half; k++) {
            const int at = k * (n / half);
            const float re = cosines[at], im = at <= n / 2 ? -cosines[n / 2 - at] : -cosines[at - n / 2];
            for (int i = 2 * k; i < 2 * n; i += 4 * half) {
                float *a = z + i, *b = z + i + 2 * half;
                const float x = re * b[0] - im * b[1], y = re * b[1] + im * b[0];
                b[0] = a[0] - x;
                b[1] = a[1] - y;
                a[0] += x;
                a[1] += y;
            }
        }
}

void s_power(const float *x, int n, int fft, int hop, int frames, const float *cosines, float *work, float *power)
{
    const int half = fft / 2;
    const float scale = 8.0f / ((float)fft * (float)fft * (float)frames); /* the Hann window sums to fft / 2 */
    for (int k = 0; k <= half; k++)
        power[k] = 0.0f;
    for (int frame = 0; frame < frames; frame++) {
        const float *from = x + frame * hop;
        const int left = n - frame * hop, count = left < fft ? left : fft;
        for (int k = 0; k < count; k++)
            work[k] = from[k] * (0.5f - 0.5f * cosines[k <= half ? k : fft - k]);
        for (int k = count; k < fft; k++)
            work[k] = 0.0f;
        transform(work, half, cosines);
        const float whole = work[0] + work[1], turn = work[0] - work[1];
        power[0] += 0.5f * scale * whole * whole;
        power[half] += 0.5f * scale * turn * turn;
        for (int k = 1; k <= half / 2; k++) {
            const float *a = work + 2 * k, *b = work + 2 * (half - k);
            const float re = cosines[k], im = -cosines[half / 2 - k];
            const float er = 0.5f * (a[0] + b[0]), ei = 0.5f * (a[1] - b[1]);
            const float or = 0.5f * (a[1] + b[1]), oi = -0.5f * (a[0] - b[0]);
            const float tr = re * or - im * oi, ti = re * oi + im * or;
            const float ur = er + tr, ui = ei + ti, vr = er - tr, vi = ti - ei;
            power[k] += scale * (ur * ur + ui * ui);
            if (k != half - k)
                power[half - k] += scale * (vr * vr + vi * vi);
        }
    }
}

void s_bank(const float *power, const uint16_t *first, const uint16_t *ends, const float *weights, int count,
            float *out)
{
    int at = 0;
    for (int k = 0; k < count; k++) {
        const float *from = power + first[k];
        float sum = 0.0f;
        for (; at < ends[k]; at++)
            sum += weights ? weights[at] * *from++ : *from++;
        out[k] = 0.434294482f * tr_log(sum + 1e-6f);
    }
}

void s_frames(const float *x, int fft, int hop, int frames, const float *cosines, float *work, float *power,
              const uint16_t *first, const uint16_t *ends, const float *weights, int count, float *out)
{
    for (int frame = 0; frame < frames; frame++) {
        s_power(x + frame * hop, fft, fft, hop, 1, cosines, work, power);
        s_bank(power, first, ends, weights, count, out + frame * count);
    }
}

void s_dense(const float *x, const float *w, const float *b, float *y, int in, int out, int relu)
{
    for (int o = 0; o < out; o++) {
        float sum = b[o];
        for (int k = 0; k < in; k++)
            sum += x[k] * *w++;
        y[o] = relu && sum < 0.0f ? 0.0f : sum;
    }
}

int s_softmax(float *x, int n)
{
    int best = 0;
    for (int k = 1; k < n; k++)
        best = x[k] > x[best] ? k : best;
    const float most = x[best];
    float sum = 0.0f;
    for (int k = 0; k < n; k++) {
        x[k] = tr_exp(x[k] - most);
        sum += x[k];
    }
    for (int k = 0; k < n; k++)
        x[k] /= sum;
    return best;
}
