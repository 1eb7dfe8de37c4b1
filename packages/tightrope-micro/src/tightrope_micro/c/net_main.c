/* Bench on a computer: ARGV = storage file, samples file, number of samples; prints what the net returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tightrope_micro.h"

static unsigned char *storage;

void tr_storage_read(uint32_t offset, void *to, uint32_t bytes)
{
    memcpy(to, storage + offset, bytes);
}

void tr_storage_write(uint32_t offset, const void *from, uint32_t bytes)
{
    memcpy(storage + offset, from, bytes);
}

int main(int count, char **given)
{
    FILE *file = count == 4 ? fopen(given[2], "rb") : NULL;
    storage = calloc(1, TR_STORAGE_BYTES);
    if (!file || !storage)
        return 2;
    for (int sample = 0; sample < atoi(given[3]); sample++) {
        for (int k = 0; k < TR_NUM_INPUTS; k++)
            if (fread(storage + tr_inputs[k].offset, 1, tr_inputs[k].bytes, file) != tr_inputs[k].bytes)
                return 2;
        const unsigned char *scores = tightrope_infer();
        printf("out ");
        for (uint32_t k = 0; k < TR_OUTPUT_BYTES; k++)
            printf("%02x", scores[k]);
        printf("\n");
    }
    printf("pages_in %llu\nbytes_in %llu\npages_out %llu\nbytes_out %llu\narena %lu\n",
           (unsigned long long)tr_pages.pages_in, (unsigned long long)tr_pages.bytes_in,
           (unsigned long long)tr_pages.pages_out, (unsigned long long)tr_pages.bytes_out,
           (unsigned long)sizeof tr_arena);
    fclose(file);
    return 0;
}
