"""M2: instructions of int8 nets beside CMSIS-NN's kernels, on the emulated Cortex-M4F.

Each layer of the quantized net is a call of CMSIS-NN with the same sizes, strides and padding, built by the
same compiler with the same flags. What the plan adds for its own formats (narrowing, widening) counts against
it. Weights are random on both sides: neither side's count depends on them. Float is the library's own.
"""

import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

from rich.console import Console

from benchmarks.micro.rows import Row
from benchmarks.micro.tiny import NETS, made
from tightrope.cli.machines import find_machine
from tightrope.core import Graph, NativeError, Op, View
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.emulate import CORES, INSTRUCTIONS_PER_TICK, build, emulated_ticks, missing_tools
from tightrope_micro.infer import capture_net, compile_net, ranges_of
from tightrope_micro.infer.compile import CompiledNet
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within
from tightrope_micro.translator import whole_numbers

_MOST, _RAM = 1.3, 4 << 20
_HEAD = """#include "tightrope_micro.h"
#include <arm_nnfunctions.h>
unsigned char tr_arena[TR_ARENA_BYTES];
tr_counters tr_pages;
const tr_place tr_inputs[] = {{0u, 0u}};
static int8_t a[MAP], b[MAP], scratch[SCRATCH];
static const int8_t weights[WEIGHTS];
static int32_t bias[CHANNELS], multipliers[CHANNELS], shifts[CHANNELS];
static const cmsis_nn_context ctx = {scratch, SCRATCH};
static const cmsis_nn_per_channel_quant_params each = {multipliers, shifts};
static const cmsis_nn_per_tensor_quant_params all = {1 << 30, -8};
static int failed;
const void *tightrope_infer(void)
{
    for (int k = 0; k < CHANNELS; k++)
        multipliers[k] = 1 << 30, shifts[k] = -8;
"""


def m2(console: Console, cmsis: str) -> list[Row]:
    """Count every net: own integers, own float and, where a checkout is given, CMSIS-NN."""
    if missing := missing_tools():
        raise NativeError(f"{missing}.")
    rows = []
    for name in NETS:
        net, samples = made(name)
        plain = capture_net(net, samples[0])
        ranges = ranges_of(plain, samples)
        whole = quantize_within(plain, ranges, samples, STREAM_ERROR, core="cortex-m4f")
        compiled, plainly = (
            compile_net(one, find_machine("stm32h743"), ram=400 * 1024) for one in (whole, plain)
        )
        own = _count(compiled, compiled.sample(*samples[1]))
        try:
            wide = _count(plainly, plainly.sample(*samples[1]))
        except NativeError as error:
            console.print(f"{name}: its float form does not link: {str(error).splitlines()[-2]}")
            wide = 0
        peer = _peer(whole.graph, compiled, Path(cmsis)) if cmsis else 0
        words = f"{own:,} instructions in int8, {f'{wide:,}' if wide else 'not counted'} in float"
        words += f", {peer:,} in CMSIS-NN: {own / peer:.2f}x" if peer else "; CMSIS-NN not given"
        held = own <= (wide or own) and (not peer or own <= _MOST * peer)
        rows.append(Row("M2", f"{name}: at most {_MOST} x CMSIS-NN, and never above float", words, held))
    return rows


def _count(compiled: CompiledNet, sample: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        board = run_on_board(out, [sample], count=True)
        assert board.outputs == run_on_host(out, [sample]).outputs
    return board.ticks * INSTRUCTIONS_PER_TICK


def _peer(graph: Graph, compiled: CompiledNet, cmsis: Path) -> int:
    calls = list(_calls(graph))
    views = [
        v for op in graph.ops for v in (*op.arguments, *(r.view for r in op.results)) if isinstance(v, View)
    ]
    sizes = {
        "MAP": max(prod(v.shape) for v in views),
        "WEIGHTS": max(prod(v.shape) for v in views),
        "CHANNELS": max(v.shape[0] for v in views if v.dtype == "int32"),
        "SCRATCH": 1 << 16,
    }
    lines = [f"#define {name} {size}" for name, size in sizes.items()]
    text = "\n".join(
        [*lines, _HEAD, *calls, "    if (failed)", "        __builtin_trap();", "    return a;", "}", ""]
    )
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        out = compiled.write(here / "out")
        (out / "step.c").write_text(text)
        (out / "kernels.c").write_text("int tr_nothing;\n")
        wanted = ("Convolution", "FullyConnected", "Pooling", "NNSupport", "BasicMath")
        found = [
            one for part in wanted for one in sorted((cmsis / "Source" / f"{part}Functions").glob("*.c"))
        ]
        sources = [str(one) for one in found if "_f32" not in one.name and "_f16" not in one.name]
        flags = ["-DTR_STEPS=1", "-w", f"-I{cmsis / 'Include'}", *sources]
        program, _ = build(out, here, compiled.manifest, (_RAM, _RAM), defines=flags, core="cortex-m4f")
        (here / "storage.bin").write_bytes((out / "storage.bin").read_bytes())
        (here / "samples.bin").write_bytes((out / "sample.bin").read_bytes())
        return emulated_ticks(program, here, CORES["cortex-m4f"][0]) * INSTRUCTIONS_PER_TICK


def _calls(graph: Graph) -> Iterator[str]:
    for op in graph.ops:
        name = op.target.removeprefix("micro.").split(".")[0]
        if name in ("q_conv2d", "q_conv2d_add"):
            yield _convolution(op, 1 if name.endswith("add") else 0)
        elif name in ("q_linear", "q_linear_add"):
            yield _dense(op, 1 if name.endswith("add") else 0)
        elif name in ("q_avg_pool2d", "q_max_pool2d"):
            yield _pool(op, "avgpool" if "avg" in name else "max_pool")
        if name.endswith("_add"):
            yield _added(op)


def _dims(*sizes: int) -> str:
    return f"&(cmsis_nn_dims){{{', '.join(map(str, sizes))}}}"


def _convolution(op: Op, at: int) -> str:
    x, w = op.arguments[at], op.arguments[at + 1]
    made = op.results[0].view
    assert isinstance(x, View)
    assert isinstance(w, View)
    (sy, sx), (py, px) = whole_numbers(op.arguments[at + 4]), whole_numbers(op.arguments[at + 5])
    depth = op.arguments[at + 6] != 1
    params = f"0, 0, {'1, ' if depth else ''}{{{sx}, {sy}}}, {{{px}, {py}}}, {{1, 1}}, {{-128, 127}}"
    kind = "cmsis_nn_dw_conv_params" if depth else "cmsis_nn_conv_params"
    filters = (1, *w.shape[2:], w.shape[0]) if depth else (w.shape[0], *w.shape[2:], w.shape[1])
    function = "arm_depthwise_conv_wrapper_s8" if depth else "arm_convolve_wrapper_s8"
    return (
        f"    failed |= {function}(&ctx, &(const {kind}){{{params}}}, &each, "
        f"{_dims(1, *x.shape[2:], x.shape[1])}, a, {_dims(*filters)}, weights, "
        f"{_dims(1, 1, 1, w.shape[0])}, bias, {_dims(1, *made.shape[2:], made.shape[1])}, b);"
    )


def _dense(op: Op, at: int) -> str:
    x, w = op.arguments[at], op.arguments[at + 1]
    assert isinstance(x, View)
    assert isinstance(w, View)
    rows = prod(x.shape) // w.shape[1]
    return (
        f"    failed |= arm_fully_connected_s8(&ctx, &(const cmsis_nn_fc_params){{0, 0, 0, {{-128, 127}}}}, "
        f"&all, {_dims(rows, 1, 1, w.shape[1])}, a, {_dims(w.shape[1], 1, 1, w.shape[0])}, weights, "
        f"{_dims(1, 1, 1, w.shape[0])}, bias, {_dims(rows, 1, 1, w.shape[0])}, b);"
    )


def _pool(op: Op, kind: str) -> str:
    x, made = op.arguments[0], op.results[0].view
    assert isinstance(x, View)
    (ky, kx), (sy, sx) = whole_numbers(op.arguments[1]), whole_numbers(op.arguments[2])
    return (
        f"    failed |= arm_{kind}_s8(&ctx, "
        f"&(const cmsis_nn_pool_params){{{{{sx}, {sy}}}, {{0, 0}}, {{-128, 127}}}}, "
        f"{_dims(1, *x.shape[2:], x.shape[1])}, a, {_dims(1, ky, kx, 1)}, "
        f"{_dims(1, *made.shape[2:], made.shape[1])}, b);"
    )


def _added(op: Op) -> str:
    size = prod(op.results[0].view.shape)
    return (
        f"    failed |= arm_elementwise_add_s8(a, b, 0, 1 << 30, -1, 0, 1 << 30, -1, 20, b, 0, 1 << 30, -18, "
        f"-128, 127, {size});"
    )
