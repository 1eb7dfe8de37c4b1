"""A pipeline, from a window of samples to a class, and the calls and addresses that compute it.

Idea        A pipeline is a list of calls over buffers: per axis its samples, their power and their
            features, then
            the layers of the net. A buffer lives from the call that makes it to the last that reads it, so
            features and net share one arena, with offsets from the placer like any plan's.
Guarantee   The C has this list of calls, these addresses and nothing else in RAM.
Complexity  Linear in axes times frames.
Gaps        Dense layers with ReLU, and softmax; of integers there are the layers alone.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.place import PlaceOptions, place
from tightrope_micro.sensor.blocks import (
    Bank,
    Block,
    Flatten,
    MelEnergies,
    Spectral,
    butterworth,
    check_block,
    log_bands,
    mel_bank,
    num_features,
    num_frames,
)

Weights = npt.NDArray[np.float32]
ITEM: Final[Bytes] = 4
WHOLE: Final = "whole"
"""Beginning of the names of buffers that hold whole numbers."""


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Window, features and net.

    Attributes:
        rows: of a window.
        axes: of the sensors.
        interval_ms: milliseconds between two rows.
        block: that computes features.
        hidden: widths of the hidden layers.
        classes: labels, in the order of the scores; none = features alone.
        numbers: of the net's layers; features are computed in float32.
    """

    rows: Annotated[int, msgspec.Meta(ge=2, le=65_536)]
    axes: Annotated[int, msgspec.Meta(ge=1, le=64)]
    interval_ms: float
    block: Block
    hidden: tuple[Annotated[int, msgspec.Meta(ge=1, le=4096)], ...] = ()
    classes: tuple[str, ...] = ()
    numbers: Literal["float32", "int8"] = "float32"

    @property
    def rate_hz(self) -> float:
        """Samples per second."""
        return 1000.0 / self.interval_ms

    @property
    def num_features(self) -> int:
        """Of all axes."""
        return self.axes * num_features(self.block, self.rows)

    @property
    def widths(self) -> tuple[int, ...]:
        """Features, hidden layers, classes; empty without a net."""
        return (self.num_features, *self.hidden, len(self.classes)) if self.classes else ()

    def check(self) -> None:
        """Check all settings.

        Raises:
            TightropeError: one is out of range.
        """
        if not 0 < self.interval_ms < float("inf"):
            raise TightropeError(f"interval_ms={self.interval_ms}: give milliseconds above 0.")
        check_block(self.block, self.rows, self.rate_hz)

    def __str__(self) -> str:
        """Settings that differ from the defaults, in one line."""
        kind = type(self.block).__name__.lower()
        given = [f"{k}={getattr(self.block, k)}" for k in _SAID if getattr(self.block, k, None) is not None]
        net = "-".join(map(str, self.widths)) or "no net"
        numbers = "" if self.numbers == "float32" or not self.classes else f" {self.numbers}"
        return f"{self.rows} rows, {kind} {' '.join(given)}".strip() + f", {net}{numbers}"


_SAID: Final = ("fft", "bands", "filter", "filters")


@dataclass(frozen=True)
class Layer:
    """A dense layer: weights (out, in) and bias (out)."""

    weight: Weights
    bias: Weights


@dataclass(frozen=True)
class BlockCall:
    """One call of a kernel.

    Attributes:
        kernel: that is called.
        arguments: as C; `{name}` stands for the address of a buffer.
        sizes: what the forecast of its instructions depends on.
        note: what it does.
        reads: buffers.
        makes: buffers; those that exist are changed.
    """

    kernel: str
    arguments: tuple[str, ...]
    sizes: tuple[int, ...]
    note: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True)
class WindowLayout:
    """Calls and addresses.

    Attributes:
        calls: in order; those from `num_block` on are the net's.
        num_block: calls that compute features.
        offsets: of every buffer in the arena.
        sizes: of every buffer, bytes.
        arena: bytes of all.
    """

    calls: tuple[BlockCall, ...]
    num_block: int
    offsets: dict[str, Offset]
    sizes: dict[str, Bytes]
    arena: Bytes


def bank_of(pipeline: Pipeline) -> Bank | None:
    """The filters over powers; None where there are none."""
    block = pipeline.block
    if isinstance(block, Flatten):
        return None
    if isinstance(block, Spectral):
        return log_bands(block.fft, block.bands)
    return mel_bank(block, pipeline.rate_hz)


def tables(pipeline: Pipeline) -> dict[str, tuple[str, list[float] | list[int]]]:
    """Constants of the features: name -> type in C, values."""
    block, bank = pipeline.block, bank_of(pipeline)
    if isinstance(block, Flatten) or bank is None:
        return {}
    half = block.fft // 2
    found: dict[str, tuple[str, list[float] | list[int]]] = {
        "cosines": ("float", [float(np.cos(np.pi * k / half)) for k in range(half + 1)]),
        "bank_first": ("uint16_t", list(bank.first)),
        "bank_ends": ("uint16_t", list(bank.ends)),
    }
    if bank.weights is not None:
        found["bank_weights"] = ("float", list(bank.weights) or [0.0])
    if isinstance(block, Spectral) and block.filter != "none":
        sections = butterworth(block.order, block.cutoff_hz / pipeline.rate_hz, high=block.filter == "high")
        found["sections"] = ("float", [float(one) for one in sections.ravel()])
    return found


def lay_out(pipeline: Pipeline) -> WindowLayout:
    """List the calls of a pipeline and give every buffer an address.

    Raises:
        TightropeError: a setting is out of range.
    """
    pipeline.check()
    sizes = {"features": pipeline.num_features * ITEM}
    block = [call for axis in range(pipeline.axes) for call in _axis(pipeline, axis, sizes)]
    calls = (*block, *_net(pipeline, sizes))
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, call in enumerate(calls):
        for name in (*call.makes, *call.reads):
            first.setdefault(name, at)
            last[name] = at + 1
    if pipeline.classes:
        last["scores"] = len(calls) + 1
    last["features"] = max(last["features"], len(block) + 1)
    names = sorted(first)
    placed = place(
        [(sizes[name], first[name], last[name]) for name in names],
        alignments=[ITEM] * len(names),
        options=PlaceOptions(),
    )
    return WindowLayout(calls, len(block), dict(zip(names, placed.offsets, strict=True)), sizes, placed.peak)


def _axis(pipeline: Pipeline, axis: int, sizes: dict[str, Bytes]) -> list[BlockCall]:
    block, rows = pipeline.block, pipeline.rows
    each = num_features(block, rows)
    x, to = f"axis{axis}", f"{{features}} + {axis * each}"
    sizes[x] = rows * ITEM
    center = 0 if isinstance(block, Flatten) else 1
    taken = (f"window + {axis}", f"{{{x}}}", f"{rows}", f"{pipeline.axes}", literal(block.scale), f"{center}")
    made = [BlockCall("s_axis", taken, (rows * (1 + center),), f"axis {axis}", (), (x,))]
    if isinstance(block, Flatten):
        return [*made, _statistics(x, rows, 0x7F, to, axis)]
    if isinstance(block, Spectral):
        if block.filter != "none":
            count = block.order // 2
            given = (f"{{{x}}}", f"{rows}", "sections", f"{count}")
            made.append(BlockCall("s_filter", given, (rows * count,), f"{block.filter} pass", (x,), (x,)))
        made.append(_statistics(x, rows, 0x68, to, axis))
        return [*made, *_spectrum(pipeline, block, axis, f"{to} + 3", sizes)]
    return [*made, _frames(pipeline, block, axis, to, sizes)]


def _statistics(x: str, rows: int, which: int, to: str, axis: int) -> BlockCall:
    given = (f"{{{x}}}", f"{rows}", f"{which}u", to)
    return BlockCall("s_statistics", given, (rows,), f"statistics of axis {axis}", (x,), ("features",))


def _spectrum(
    pipeline: Pipeline, block: Spectral, axis: int, to: str, sizes: dict[str, Bytes]
) -> tuple[BlockCall, BlockCall]:
    x, work, power = _buffers(block, axis, sizes)
    rows, fft, count = pipeline.rows, block.fft, num_frames(pipeline.rows, block.fft)
    given = (
        f"{{{x}}}",
        f"{rows}",
        f"{fft}",
        f"{fft // 2}",
        f"{count}",
        "cosines",
        f"{{{work}}}",
        f"{{{power}}}",
    )
    note = f"power of axis {axis}, {count} frames of {fft}"
    spectrum = BlockCall("s_power", given, (fft, count), note, (x,), (work, power))
    bands = (f"{{{power}}}", "bank_first", "bank_ends", "0", f"{block.bands}", to)
    summed = (block.bands, fft // 2)
    return spectrum, BlockCall("s_bank", bands, summed, f"{block.bands} bands", (power,), ("features",))


def _frames(pipeline: Pipeline, block: MelEnergies, axis: int, to: str, sizes: dict[str, Bytes]) -> BlockCall:
    x, work, power = _buffers(block, axis, sizes)
    fft, count = block.fft, num_frames(pipeline.rows, block.fft, block.stride)
    weights = mel_bank(block, pipeline.rate_hz).ends[-1]
    given = (f"{{{x}}}", f"{fft}", f"{block.stride or fft // 2}", f"{count}", "cosines",
             f"{{{work}}}", f"{{{power}}}", "bank_first", "bank_ends", "bank_weights",
             f"{block.filters}", to)  # fmt: skip
    note = f"{count} frames of {fft} of axis {axis}, {block.filters} filters each"
    return BlockCall(
        "s_frames", given, (fft, count, block.filters, weights), note, (x,), (work, power, "features")
    )


def _buffers(block: Spectral | MelEnergies, axis: int, sizes: dict[str, Bytes]) -> tuple[str, str, str]:
    x, work, power = f"axis{axis}", f"frame{axis}", f"power{axis}"
    sizes[work], sizes[power] = block.fft * ITEM, (block.fft // 2 + 1) * ITEM
    return x, work, power


def _net(pipeline: Pipeline, sizes: dict[str, Bytes]) -> list[BlockCall]:
    widths = pipeline.widths
    if pipeline.numbers == "int8" and widths:
        return [*_integer_net(widths, sizes), _softmax(widths[-1])]
    found, source = [], "features"
    for k, (wide, out) in enumerate(pairwise(widths)):
        final = k == len(widths) - 2
        made = "scores" if final else f"hidden{k}"
        sizes[made] = out * ITEM
        given = (
            f"{{{source}}}",
            f"weight{k}",
            f"bias{k}",
            f"{{{made}}}",
            f"{wide}",
            f"{out}",
            f"{int(not final)}",
        )
        found.append(BlockCall("s_dense", given, (wide, out), f"dense {wide} -> {out}", (source,), (made,)))
        source = made
    return [*found, _softmax(widths[-1])] if widths else found


def _softmax(count: int) -> BlockCall:
    given = ("{scores}", f"{count}")
    return BlockCall("s_softmax", given, (count,), "probabilities", ("scores",), ("scores",))


def _integer_net(widths: tuple[int, ...], sizes: dict[str, Bytes]) -> list[BlockCall]:
    """Features to 8 bits, layers, scores to float32; buffers of whole numbers are called so."""
    source = f"{WHOLE}_features"
    sizes[source], count = widths[0], widths[-1]
    given: tuple[str, ...] = ("{features}", "centers", "ratios", f"{{{source}}}", f"{widths[0]}")
    found = [BlockCall("s_quantize", given, (widths[0],), "features to 8 bits", ("features",), (source,))]
    for k, (wide, out) in enumerate(pairwise(widths)):
        final = int(k == len(widths) - 2)
        made = f"{WHOLE}{k}"
        sizes[made] = out * (1 + final)
        given = (
            f"{{{source}}}", f"weight{k}", f"bias{k}", f"times{k}", f"{{{made}}}", f"{final}", "1",
            f"{wide}", f"{out}", f"pre{k}", f"shift{k}", f"low{k}", f"high{k}",
        )  # fmt: skip
        found.append(
            BlockCall("k_q_linear", given, (wide, out), f"dense {wide} -> {out}", (source,), (made,))
        )
        source = made
    sizes["scores"] = count * ITEM
    given = (f"{{{source}}}", "unit", "{scores}", f"{count}")
    return [*found, BlockCall("s_scores", given, (count,), "scores", (source,), ("scores",))]


def literal(value: float) -> str:
    """A float32 as C that reads back to the same bits."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
