/* Bench on an emulated Cortex-M4F (mps2-an386): reset, fence, stack, storage in a file of the host, counts.

   The memory protection unit lets nothing be touched but TR_RAM bytes
   behind 0x20000000, and code and constants, which are read-only. The free part of RAM is painted before anything runs, so that what the
   stack took shows at the end. There is no heap: _sbrk fails. Storage and console are semihosting calls. */
#include <stddef.h>
#include <stdint.h>

#include "tightrope_micro.h"

#define PAINT 0xA5A5A5A5u
#define REG(at) (*(volatile uint32_t *)(at))

extern uint32_t _load, _data, _edata, _bss, _ebss, _top;

static int storage, samples;
static volatile uint32_t wraps;

static int host_call(int what, const void *with)
{
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

__attribute__((noreturn)) static void leave(int code)
{
    const uint32_t with[2] = {0x20026, (uint32_t)code};
    host_call(0x20, with);
    for (;;)
        ;
}

static void say(const char *name, uint32_t high, uint32_t low)
{
    char digits[20];
    for (int k = 0; k < 16; k++) {
        const uint32_t word = k < 8 ? high : low;
        digits[k] = "0123456789abcdef"[word >> (28 - k % 8 * 4) & 15u];
    }
    digits[16] = '\n';
    digits[17] = 0;
    host_call(4, name);
    host_call(4, " ");
    host_call(4, digits);
}

void *_sbrk(ptrdiff_t more)
{
    (void)more;
    return (void *)-1;
}

static void at(int file, uint32_t offset)
{
    const uint32_t with[2] = {(uint32_t)file, offset};
    if (host_call(0x0A, with))
        leave(3);
}

static void transfer(int what, int file, const void *with, uint32_t bytes)
{
    const uint32_t given[3] = {(uint32_t)file, (uint32_t)(uintptr_t)with, bytes};
    if (host_call(what, given))
        leave(4);
}

void tr_storage_read(uint32_t offset, void *to, uint32_t bytes)
{
    at(storage, offset);
    transfer(6, storage, to, bytes);
}

void tr_storage_write(uint32_t offset, const void *from, uint32_t bytes)
{
    at(storage, offset);
    transfer(5, storage, from, bytes);
}

static int open_file(const char *name, uint32_t letters, uint32_t mode)
{
    const uint32_t with[3] = {(uint32_t)(uintptr_t)name, mode, letters};
    const int file = host_call(1, with);
    if (file < 0)
        leave(2);
    return file;
}

/* Between steps the arena holds nothing: the sample passes through it. */
static void bring_sample(int step)
{
    uint32_t from = (uint32_t)step * TR_SAMPLE_BYTES;
    for (int k = 0; k < TR_NUM_INPUTS; k++)
        for (uint32_t done = 0; done < tr_inputs[k].bytes;) {
            const uint32_t left = tr_inputs[k].bytes - done, part = left < TR_ARENA_BYTES ? left : TR_ARENA_BYTES;
            at(samples, from);
            transfer(6, samples, tr_arena, part);
            tr_storage_write(tr_inputs[k].offset + done, tr_arena, part);
            from += part;
            done += part;
        }
}

static uint64_t ticks(void)
{
    for (;;) {
        const uint32_t before = wraps, now = REG(0xE000E018);
        if (before == wraps)
            return ((uint64_t)before << 24) + (0xFFFFFFu - now);
    }
}

static void work(void)
{
    storage = open_file("storage.bin", 11, 3);
    samples = open_file("samples.bin", 11, 1);
    uint64_t spent = 0;
    for (int step = 0; step < TR_STEPS; step++) {
        bring_sample(step);
        const uint64_t start = ticks();
#ifdef TR_OUTPUT_BYTES
        const unsigned char *scores = tightrope_infer();
        spent += ticks() - start;
        for (uint32_t k = 0; k < TR_OUTPUT_BYTES; k++)
            say("out", 0, scores[k]);
#else
        union {
            float value;
            uint32_t bits;
        } loss = {tightrope_step()};
        spent += ticks() - start;
        say("loss", 0, loss.bits);
#endif
    }
    say("ticks", (uint32_t)(spent >> 32), (uint32_t)spent);
    say("pages_in", (uint32_t)(tr_pages.pages_in >> 32), (uint32_t)tr_pages.pages_in);
    say("bytes_in", (uint32_t)(tr_pages.bytes_in >> 32), (uint32_t)tr_pages.bytes_in);
    say("pages_out", (uint32_t)(tr_pages.pages_out >> 32), (uint32_t)tr_pages.pages_out);
    say("bytes_out", (uint32_t)(tr_pages.bytes_out >> 32), (uint32_t)tr_pages.bytes_out);
    say("arena", 0, sizeof tr_arena);
}

/* Regions of a power of two each, the largest first, so that each lies at a multiple of its size. */
static void fence(void)
{
    uint32_t base = 0x20000000u, left = TR_RAM, region = 1;
    REG(0xE000ED98) = 0; /* code and constants: read-only, executable */
    REG(0xE000ED9C) = 0;
    REG(0xE000EDA0) = 6u << 24 | 0xBu << 16 | 21u << 1 | 1u;
    for (uint32_t power = 22; power >= 5; power--)
        if (left >= 1u << power) {
            REG(0xE000ED98) = region++;
            REG(0xE000ED9C) = base;
            REG(0xE000EDA0) = 1u << 28 | 3u << 24 | 0xBu << 16 | (power - 1) << 1 | 1u;
            base += 1u << power;
            left -= 1u << power;
        }
    for (; region < 8; region++) {
        REG(0xE000ED98) = region;
        REG(0xE000EDA0) = 0;
    }
    REG(0xE000ED24) |= 1u << 16;
    REG(0xE000ED94) = 1;
    __asm__ volatile("dsb\nisb");
}

__attribute__((used)) static void start(void)
{
    const uint32_t *from = &_load;
    for (uint32_t *to = &_data; to < &_edata;)
        *to++ = *from++;
    for (uint32_t *to = &_bss; to < &_ebss;)
        *to++ = 0;
    REG(0xE000ED88) |= 0xFu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\nisb");
    fence();
    REG(0xE000E014) = 0xFFFFFF;
    REG(0xE000E018) = 0;
    REG(0xE000E010) = 7;
    while (!REG(0xE000E018)) /* 0 until the first tick loads it: a count from there would miss a period */
        ;
#ifdef TR_PROBE
    REG(TR_PROBE) = 1;
#endif
    work();
    const uint32_t *used = &_ebss;
    while (used < &_top && *used == PAINT)
        used++;
    say("stack", 0, (uint32_t)((uintptr_t)&_top - (uintptr_t)used));
    say("static", 0, (uint32_t)((uintptr_t)&_ebss - (uintptr_t)&_data));
    leave(0);
}

__attribute__((naked, noreturn)) void reset(void)
{
    __asm__ volatile("ldr r0, =_ebss\n"
                     "ldr r1, =_top\n"
                     "ldr r2, =0xA5A5A5A5\n"
                     "1: cmp r0, r1\n"
                     "bcs 2f\n"
                     "str r2, [r0], #4\n"
                     "b 1b\n"
                     "2: bl start\n");
}

static void on_tick(void)
{
    wraps++;
}

static void on_fault(void)
{
    REG(0xE000ED94) = 0;
    say("fault", REG(0xE000ED28), REG(0xE000ED34));
    leave(1);
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    &_top, (void *)reset, (void *)on_fault, (void *)on_fault, (void *)on_fault, (void *)on_fault, (void *)on_fault,
    0, 0, 0, 0, 0, 0, 0, 0, (void *)on_tick,
};
