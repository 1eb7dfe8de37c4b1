/* Bench on a computer: ARGV = file of windows, number of windows; prints features, then scores, a line per window. */
#include <stdio.h>
#include <stdlib.h>

#include "tightrope_sensor.h"

static float window[TR_WINDOW_ROWS * TR_WINDOW_AXES];

int main(int count, char **given)
{
    FILE *file = count == 3 ? fopen(given[1], "rb") : 0;
    if (!file)
        return 2;
    printf("arena %u\n", TR_ARENA_BYTES);
    for (int k = 0; k < atoi(given[2]); k++) {
        if (fread(window, sizeof window, 1, file) != 1)
            return 2;
        const float *found = tr_features(window);
        for (int f = 0; f < TR_NUM_FEATURES; f++)
            printf("%.9g ", (double)found[f]);
#if TR_NUM_CLASSES
        const int best = tr_classify(window);
        for (int c = 0; c < TR_NUM_CLASSES; c++)
            printf("%.9g ", (double)tr_scores[c]);
        printf("%d", best);
#endif
        printf("\n");
    }
    return 0;
}
