/* Counts what kernels of rows take. On a board, `tightrope_step` runs all of them and says the ticks of each; else
   ARGV = number of a kernel, times, and an emulator counts. */
#include <stdint.h>
#include <stdlib.h>

#include "made.h"

static int8_t x8[ELEMENTS], y8[ELEMENTS];
static uint8_t u8[ELEMENTS];
static int16_t x16[ELEMENTS];

static void draw(void)
{
    uint32_t state = 1;
    for (int k = 0; k < ELEMENTS; k++) {
        state = state * 1664525u + 1013904223u;
        x8[k] = (int8_t)(state >> 24);
        x16[k] = (int16_t)(state >> 16);
    }
}

static void run(int kernel)
{
    switch (kernel) {
        ALL_CASES
    }
}

#ifdef TR_STEPS
#include "board.c"
const tr_place tr_inputs[] = {{0u, 0u}};
tr_counters tr_pages;
unsigned char tr_arena[TR_ARENA_BYTES];

float tightrope_step(void)
{
    draw();
    for (int k = 0; k < KERNELS; k++) {
        const uint64_t start = ticks();
        for (int time = 0; time < TR_TIMES; time++)
            run(k);
        say("kernel", (uint32_t)k, (uint32_t)(ticks() - start));
    }
    return 0.0f;
}
#else
int main(int count, char **given)
{
    if (count != 3)
        return 2;
    draw();
    for (int k = 0; k < atoi(given[2]); k++)
        run(atoi(given[1]));
    return y8[0] > 126 && u8[0] > 254;
}
#endif
