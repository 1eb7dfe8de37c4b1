/* Bench of TensorFlow Lite Micro on an emulated Cortex-M4F: as small as ours, without a fence.

   It reads inputs from a file of the host and says outputs, bytes of the arena that are used, ticks of the
   calls, static RAM and the most bytes of stack. There is no heap: _sbrk fails. */
#include <cstddef>
#include <cstdint>

#include "model.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

#define PAINT 0xA5A5A5A5u
#define REG(at) (*(volatile uint32_t *)(at))

extern "C" {
extern uint32_t _load, _data, _edata, _bss, _ebss, _top;
extern void (*_init_first[])(void);
extern void (*_init_last[])(void);
void *_sbrk(ptrdiff_t) { return (void *)-1; }
}

alignas(16) static uint8_t arena[ARENA];

static int host_call(int what, const void *with)
{
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

extern "C" __attribute__((noreturn)) void leave(int code)
{
    const uint32_t with[2] = {0x20026, (uint32_t)code};
    host_call(0x20, with);
    for (;;)
        ;
}

extern "C" void abort(void) { leave(9); }

static void say(const char *name, uint32_t word)
{
    char digits[12];
    for (int k = 0; k < 8; k++)
        digits[k] = "0123456789abcdef"[word >> (28 - k * 4) & 15u];
    digits[8] = '\n';
    digits[9] = 0;
    host_call(4, name);
    host_call(4, " ");
    host_call(4, digits);
}

static void work()
{
    tflite::MicroMutableOpResolver<NUM_KINDS> resolver;
    ADD_KINDS(resolver)
    tflite::MicroInterpreter interpreter(tflite::GetModel(model_bytes), resolver, arena, sizeof arena);
    if (interpreter.AllocateTensors() != kTfLiteOk)
        leave(5);
    const uint32_t opening[3] = {(uint32_t)(uintptr_t)"samples.bin", 1, 11};
    const int samples = host_call(1, opening);
    uint32_t ticks = 0;
    for (int step = 0; step < STEPS; step++) {
        TfLiteTensor *in = interpreter.input(0), *out = interpreter.output(0);
        const uint32_t reading[3] = {(uint32_t)samples, (uint32_t)(uintptr_t)in->data.int8, in->bytes};
        if (host_call(6, reading))
            leave(6);
        const uint32_t before = REG(0xE000E018); /* counts down; no call takes as long as it takes to wrap */
        if (interpreter.Invoke() != kTfLiteOk)
            leave(6);
        ticks += (before - REG(0xE000E018)) & 0xFFFFFFu;
        for (uint32_t k = 0; k < out->bytes; k++)
            say("out", (uint8_t)out->data.int8[k]);
    }
    say("arena", interpreter.arena_used_bytes());
    say("ticks", ticks);
}

extern "C" __attribute__((used)) void start(void)
{
    const uint32_t *from = &_load;
    for (uint32_t *to = &_data; to < &_edata;)
        *to++ = *from++;
    for (uint32_t *to = &_bss; to < &_ebss;)
        *to++ = 0;
    REG(0xE000ED88) |= 0xFu << 20;
    __asm__ volatile("dsb\nisb");
    REG(0xE000E014) = 0xFFFFFF;
    REG(0xE000E018) = 0;
    REG(0xE000E010) = 5;
    for (void (**one)(void) = _init_first; one < _init_last; one++)
        (*one)();
    work();
    const uint32_t *used = &_ebss;
    while (used < &_top && *used == PAINT)
        used++;
    say("stack", (uint32_t)((uintptr_t)&_top - (uintptr_t)used));
    say("static", (uint32_t)((uintptr_t)&_ebss - (uintptr_t)&_data));
    leave(0);
}

extern "C" __attribute__((naked, noreturn)) void reset(void)
{
    __asm__ volatile("ldr r0, =_ebss\nldr r1, =_top\nldr r2, =0xA5A5A5A5\n"
                     "1: cmp r0, r1\nbcs 2f\nstr r2, [r0], #4\nb 1b\n2: bl start\n");
}

static void on_fault(void) { leave(1); }

extern "C" __attribute__((section(".vectors"), used)) const void *const vectors[16] = {
    &_top, (void *)reset, (void *)on_fault, (void *)on_fault, (void *)on_fault, (void *)on_fault, (void *)on_fault,
};
