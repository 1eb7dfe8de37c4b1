"""What a pipeline takes on a Cortex-M4F, before anything is compiled.

Idea        RAM is the arena that the placer gave. Constants are counted. What the code of every kernel
            takes, and
            how many instructions it runs per unit of its sizes, was measured once and stands in a table.
Source      arm-none-eabi-gcc 12.2.1 with `measure.FLAGS`, on an emulated Cortex-M4F
Guarantee   RAM is exact. ROM and instructions are those of that compiler; `python -m benchmarks
            micro_workflow`
            prints them beside measured ones, for pipelines that the table was not made with.
Complexity  Linear in calls.
Gaps        Instructions are no cycles; what depends on values (an exponential of a small number) is a mean.
"""

import math
from itertools import pairwise
from typing import Final

import msgspec

from tightrope.core import Bytes
from tightrope_micro.sensor.pipeline import BlockCall, Pipeline, WindowLayout, tables

CODE: Final[dict[str, Bytes]] = {
    "k_q_linear": 218,
    "s_axis": 84,
    "s_bank": 340,
    "s_dense": 84,
    "s_filter": 140,
    "s_frames": 98,
    "s_power": 912,
    "s_quantize": 140,
    "s_scores": 36,
    "s_softmax": 504,
    "s_statistics": 336,
}
"""Bytes of every kernel."""
CALL_CODE: Final[dict[str, float]] = {
    "k_q_linear": 55.3,
    "s_axis": 30.8,
    "s_bank": 52.4,
    "s_dense": 36.6,
    "s_filter": 12.6,
    "s_frames": 37.5,
    "s_power": 0.0,
    "s_quantize": 51.7,
    "s_scores": 0.0,
    "s_softmax": 45.6,
    "s_statistics": 0.0,
}
"""Bytes that a call takes, by least squares over 28 pipelines, of integers over 12; those that always come
together have one sum."""
LIBRARY_CODE: Final = 29.6
"""Bytes of code of every library."""
INSTRUCTIONS: Final[dict[str, float]] = {
    "k_q_linear.out": 31.85,
    "k_q_linear.weight": 4.89,
    "s_axis.sample": 11.18,
    "s_bank.band": 51.06,
    "s_bank.bin": 7.11,
    "s_bank.weight": 8.49,
    "s_dense.out": 7.2,
    "s_dense.weight": 6.36,
    "s_filter.sample": 17.89,
    "s_power.butterfly": 22.19,
    "s_power.sample": 48.82,
    "s_quantize.feature": 41.45,
    "s_scores.class": 6.0,
    "s_softmax.class": 59.69,
    "s_statistics": 135.12,
    "s_statistics.sample": 19.85,
}
"""Instructions per unit that `units` counts, by least squares over the same pipelines."""


class SensorForecast(msgspec.Struct, frozen=True):
    """What a pipeline takes.

    Attributes:
        ram: bytes of static RAM; not the window, which is the caller's, and not the stack.
        rom: bytes of code and constants.
        instructions: of one window, on a Cortex-M4F.
    """

    ram: Bytes
    rom: Bytes
    instructions: int


def forecast(pipeline: Pipeline, layout: WindowLayout) -> SensorForecast:
    """Say what a pipeline takes."""
    used = {call.kernel for call in layout.calls}
    if "s_frames" in used:
        used |= {"s_power", "s_bank"}
    calls = sum(CALL_CODE[call.kernel] for call in layout.calls)
    code = sum(CODE[name] for name in used) + LIBRARY_CODE + calls
    spent = sum(INSTRUCTIONS[name] * count for call in layout.calls for name, count in units(call).items())
    return SensorForecast(layout.arena, round(constant_bytes(pipeline) + code), round(spent))


def units(call: BlockCall) -> dict[str, int]:
    """What the instructions of a call are proportional to, and how often it has it."""
    sizes = call.sizes
    match call.kernel:
        case "s_axis" | "s_filter":
            return {f"{call.kernel}.sample": sizes[0]}
        case "s_statistics":
            return {"s_statistics": 1, "s_statistics.sample": sizes[0]}
        case "s_power":
            return _power(*sizes)
        case "s_bank":
            return {"s_bank.band": sizes[0], "s_bank.bin": sizes[1]}
        case "s_frames":
            fft, frames, filters, weights = sizes
            bank = {"s_bank.band": frames * filters, "s_bank.weight": frames * weights}
            return {**_power(fft, frames), **bank}
        case "s_dense" | "k_q_linear":
            return {f"{call.kernel}.out": sizes[1], f"{call.kernel}.weight": sizes[0] * sizes[1]}
        case "s_quantize":
            return {"s_quantize.feature": sizes[0]}
        case "s_scores":
            return {"s_scores.class": sizes[0]}
        case _:
            return {"s_softmax.class": sizes[0]}


def _power(fft: int, frames: int) -> dict[str, int]:
    butterflies = frames * fft // 4 * (int(math.log2(fft)) - 1)
    return {"s_power.sample": fft * frames, "s_power.butterfly": butterflies}


def constant_bytes(pipeline: Pipeline) -> Bytes:
    """Bytes of tables and weights."""
    found = sum({"float": 4, "uint16_t": 2}[kind] * len(values) for kind, values in tables(pipeline).values())
    widths = pipeline.widths
    if (
        widths and pipeline.numbers == "int8"
    ):  # weights of one byte; centers and ratios, biases and multipliers
        return found + 8 * sum(widths) + sum(a * b for a, b in pairwise(widths))
    return found + sum(4 * (a + 1) * b for a, b in pairwise(widths))
