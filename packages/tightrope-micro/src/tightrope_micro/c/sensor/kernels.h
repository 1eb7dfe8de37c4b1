/* Features of windows and a small net: what the pipeline calls. */
#ifndef TIGHTROPE_SENSOR_KERNELS_H
#define TIGHTROPE_SENSOR_KERNELS_H

#include <stdint.h>

/* One axis of a window, scaled; without its mean where `center` is set. */
void s_axis(const float *window, float *x, int n, int axes, float scale, int center);
/* Second-order sections over x, in place: b0, b1, b2, a1, a2 each. */
void s_filter(float *x, int n, const float *sections, int count);
/* Mean, minimum, maximum, rms, deviation, skewness, kurtosis; of those, the ones whose bit is set in `which`. */
void s_statistics(const float *x, int n, uint32_t which, float *out);
/* Mean power of `frames` frames under a Hann window, `hop` apart; `cosines` are those of a half turn. */
void s_power(const float *x, int n, int fft, int hop, int frames, const float *cosines, float *work, float *power);
/* log10 of weighted sums of powers; weights may be 0. */
void s_bank(const float *power, const uint16_t *first, const uint16_t *ends, const float *weights, int count,
            float *out);
/* s_power and s_bank of one frame after the other, `hop` apart. */
void s_frames(const float *x, int fft, int hop, int frames, const float *cosines, float *work, float *power,
              const uint16_t *first, const uint16_t *ends, const float *weights, int count, float *out);
/* Dense layer: y = x w^T + b, cut at 0 where `relu` is set. */
void s_dense(const float *x, const float *w, const float *b, float *y, int in, int out, int relu);
/* Features as whole numbers of 8 bits: (x - center) * ratio, rounded and clamped. */
void s_quantize(const float *x, const float *center, const float *ratio, int8_t *y, int n);
/* Dense layer of 8-bit numbers; the sums take 32 bits, the result 8 or, where it is wide, 16. */
void k_q_linear(const int8_t *x, const int8_t *w, const int32_t *b, const int32_t *m, void *y, int wide, int rows,
                int inputs, int outputs, int pre, int shift, int low, int high);
/* Whole scores as real ones. */
void s_scores(const int16_t *x, float unit, float *y, int n);
/* Probabilities in place; returns the place of the largest. */
int s_softmax(float *x, int n);

#endif
