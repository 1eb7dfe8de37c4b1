/* What the board runs as its step: one window in, class or features out. Without TR_PIPELINE it does neither, so
   that what the bench takes itself can be subtracted. The window is the array that the bench brings samples to. */
#include "tightrope_micro.h"

#ifdef TR_PIPELINE
#include "tightrope_sensor.h"
#endif

_Alignas(4) unsigned char tr_arena[TR_ARENA_BYTES];
tr_counters tr_pages;
const tr_place tr_inputs[] = {{0, TR_SAMPLE_BYTES}};
static uint32_t at = TR_SAMPLE_BYTES;

float tightrope_step(void)
{
    const float *from = (const float *)(const void *)tr_arena;
    float found = 0.0f;
#ifdef TR_PIPELINE
#if TR_NUM_CLASSES
    found = (float)tr_classify(from);
    from = tr_scores;
#else
    from = tr_features(from);
#endif
#endif
    tr_storage_write(at, from, TR_OUT_BYTES);
    at += TR_OUT_BYTES;
    return found;
}
