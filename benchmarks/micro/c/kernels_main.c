/* ARGV = kernel, times: run a kernel so often on drawn rows. The strict float kernels call the C library. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "made.h"

static int8_t x8[ELEMENTS], y8[ELEMENTS];
static uint8_t u8[ELEMENTS];
static int16_t x16[ELEMENTS];
static float xf[ELEMENTS], yf[ELEMENTS], gamma_[LN_WIDTH], beta_[LN_WIDTH];

static void float_softmax(const float *x, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++, x += n, y += n) {
        float most = x[0], sum = 0.0f;
        for (int k = 1; k < n; k++)
            most = x[k] > most ? x[k] : most;
        for (int k = 0; k < n; k++)
            sum += y[k] = expf(x[k] - most);
        for (int k = 0; k < n; k++)
            y[k] /= sum;
    }
}

static void float_gelu(const float *x, float *y, int count)
{
    for (int k = 0; k < count; k++)
        y[k] = 0.5f * x[k] * (1.0f + erff(x[k] * 0.70710678f));
}

static void float_norm(const float *x, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++, x += n, y += n) {
        float mean = 0.0f, square = 0.0f;
        for (int k = 0; k < n; k++)
            mean += x[k];
        mean /= (float)n;
        for (int k = 0; k < n; k++)
            square += (x[k] - mean) * (x[k] - mean);
        const float scale = 1.0f / sqrtf(square / (float)n + 1e-5f);
        for (int k = 0; k < n; k++)
            y[k] = (x[k] - mean) * scale * gamma_[k] + beta_[k];
    }
}

static void look_up(const int8_t *x, const int8_t *table, int8_t *y, int count)
{
    for (int k = 0; k < count; k++)
        y[k] = table[x[k] + 128];
}

static int32_t rounded(float value, int32_t low, int32_t high)
{
    const int32_t whole = (int32_t)(value + (value < 0.0f ? -0.5f : 0.5f));
    return whole < low ? low : whole > high ? high : whole;
}

/* The same functions from whole numbers to whole numbers, row by row, as they would stand in an integer net. */
static void converted(const char *name, int rows, int n)
{
    float from[1024], to[1024];
    for (int r = 0; r < rows; r++) {
        const int at = r * n;
        const int norm = name[0] == 'n';
        for (int k = 0; k < n; k++)
            from[k] = norm ? (float)x16[at + k] * 0.001f : (float)x8[at + k] * 0.05f;
        if (norm)
            float_norm(from, to, 1, n);
        else if (name[0] == 's')
            float_softmax(from, to, 1, n);
        else
            float_gelu(from, to, n);
        if (name[0] == 's')
            for (int k = 0; k < n; k++)
                u8[at + k] = (uint8_t)rounded(to[k] * 255.0f, 0, 255);
        else
            for (int k = 0; k < n; k++)
                y8[at + k] = (int8_t)rounded(to[k] * (norm ? 33.3f : 20.0f), -128, 127);
    }
}

int main(int count, char **given)
{
    if (count != 3)
        return 2;
    uint32_t state = 1;
    for (int k = 0; k < ELEMENTS; k++) {
        state = state * 1664525u + 1013904223u;
        x8[k] = (int8_t)(state >> 24);
        x16[k] = (int16_t)(state >> 16);
        xf[k] = (float)x8[k] * 0.05f;
    }
    for (int k = 0; k < LN_WIDTH; k++)
        gamma_[k] = 1.0f;
    const char *name = given[1];
    for (int k = 0; k < atoi(given[2]); k++) {
        if (!strcmp(name, "softmax_float"))
            float_softmax(xf, yf, SM_ROWS, SM_WIDTH);
        if (!strcmp(name, "softmax_polynomial"))
            softmax_197(x8, u8, SM_ROWS);
        if (!strcmp(name, "softmax_converted"))
            converted(name, SM_ROWS, SM_WIDTH);
        if (!strcmp(name, "gelu_converted"))
            converted(name, GELU_COUNT / 768, 768);
        if (!strcmp(name, "norm_converted"))
            converted(name, LN_ROWS, LN_WIDTH);
        if (!strcmp(name, "softmax_integer"))
            softmax_table_197(x8, u8, SM_ROWS);
        if (!strcmp(name, "gelu_float"))
            float_gelu(xf, yf, GELU_COUNT);
        if (!strcmp(name, "gelu_integer"))
            look_up(x8, gelu_table, y8, GELU_COUNT);
        if (!strcmp(name, "norm_float"))
            float_norm(xf, yf, LN_ROWS, LN_WIDTH);
        if (!strcmp(name, "norm_integer"))
            layer_norm_192(x16, y8, LN_ROWS);
    }
    return yf[0] > 1e30f && y8[0] > 126 && u8[0] > 254;
}
