/* Bench on a computer: ARGV = storage file, samples file, number of steps. Storage is read whole, and written
   back whole after the last step; page_in and page_out count what the device would move. */
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

static unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        exit(2);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes ? *bytes : 1);
    if (!data || fread(data, 1, *bytes, file) != *bytes)
        exit(2);
    fclose(file);
    return data;
}

int main(int count, char **given)
{
    if (count != 4)
        return 2;
    size_t held, size;
    unsigned char *read = read_file(given[1], &held), *samples = read_file(given[2], &size);
    storage = calloc(1, TR_STORAGE_BYTES);
    if (!storage || held > TR_STORAGE_BYTES)
        return 2;
    memcpy(storage, read, held);
    for (int step = 0; step < atoi(given[3]); step++) {
        const unsigned char *from = samples + (size_t)step * TR_SAMPLE_BYTES;
        if ((size_t)(step + 1) * TR_SAMPLE_BYTES > size)
            return 2;
        for (int k = 0; k < TR_NUM_INPUTS; k++) {
            memcpy(storage + tr_inputs[k].offset, from, tr_inputs[k].bytes);
            from += tr_inputs[k].bytes;
        }
        printf("loss %.9g\n", (double)tightrope_step());
    }
    printf("pages_in %llu\nbytes_in %llu\npages_out %llu\nbytes_out %llu\narena %lu\n",
           (unsigned long long)tr_pages.pages_in, (unsigned long long)tr_pages.bytes_in,
           (unsigned long long)tr_pages.pages_out, (unsigned long long)tr_pages.bytes_out,
           (unsigned long)sizeof tr_arena);
    FILE *file = fopen(given[1], "wb");
    if (!file || fwrite(storage, 1, TR_STORAGE_BYTES, file) != TR_STORAGE_BYTES || fclose(file))
        return 2;
    return 0;
}
