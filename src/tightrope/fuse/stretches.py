"""Cut what runs into stretches that a compiler can turn into loops.

Idea        A stretch is a longest row of ops over elements: pointwise, reductions along rows, moves of
            data. Heavy kernels, random ops, changes in place and returns end it. It is cut again where no
            value goes across, so that equal layers give equal stretches, and where all at once would hold
            more bytes than there are.
Complexity  Linear in the instructions, times the depth of the cuts.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from tightrope.core import (
    Alloc,
    Argument,
    Bytes,
    Executable,
    Flag,
    Graph,
    Instruction,
    Op,
    Release,
    Return,
    Run,
    StorageId,
    View,
)
from tightrope.core.values import ITEM_BYTES, views
from tightrope.fuse.traced import FOR_COMPILERS
from tightrope.price.kernels import resolve

_SERIAL: Final = Flag.RANDOM | Flag.IN_PLACE | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.OPAQUE
_ROWS: Final = frozenset(
    f"aten.{name}"
    for name in (
        "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "amax.default", "amin.default",
        "var_mean.correction", "_softmax.default", "_softmax_backward_data.default",
        "_log_softmax.default", "_log_softmax_backward_data.default", "native_layer_norm.default",
        "native_layer_norm_backward.default", "native_group_norm.default",
        "native_group_norm_backward.default", "_native_batch_norm_legit_functional.default",
        "native_batch_norm.default", "_fused_rms_norm.default",
        "_fused_rms_norm_backward.default", "cat.default", "stack.default", "clone.default",
        "_to_copy.default", "copy.default", "slice_backward.default", "select_backward.default",
        "full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones_like.default",
        "new_zeros.default", "arange.default", "arange.start_step", "constant_pad_nd.default",
        "nll_loss_forward.default", "nll_loss_backward.default", "repeat.default", "expand.default",
        "gelu.default", "gelu_backward.default", "silu.default", "silu_backward.default",
        "threshold_backward.default", "where.self", "addcmul.default", "addcdiv.default",
        "max_pool2d_with_indices.default",
    )
)  # fmt: skip
"""Ops beside pointwise ones that become loops."""
_MOST_RUNS: Final = 64
_LEAST_BYTES: Final[Bytes] = 32_768
"""Stretches that read and write less are not worth a call of their own."""


class Region(NamedTuple):
    """Runs ``[first, last)`` of an executable, its instructions ``[begin, end)``, and what they leave."""

    first: int
    last: int
    begin: int
    end: int
    left: tuple[StorageId, ...] = ()


def regions(graph: Graph, executable: Executable, *, most: Bytes) -> list[Region]:
    """List the stretches of an executable, in order.

    Args:
        graph: that it computes.
        executable: of single runs.
        most: bytes that may be live at once.
    """
    flow = _Lives(graph, executable)
    found: list[Region] = []
    for region in flow.rows():
        for part in flow.pieces(region):
            found += flow.fitting(part, most)
    return [region for region in found if flow.worth(region)]


class _Lives:
    """Where buffers begin, are read and end, and what is live before every instruction."""

    def __init__(self, graph: Graph, executable: Executable) -> None:
        self.graph = graph
        self.instructions = executable.instructions
        self.begins: dict[int, int] = {}
        self.reads: dict[int, list[int]] = {}
        self.ends: dict[int, int] = {}
        self.size: dict[int, Bytes] = {}
        self.storage: dict[int, int] = {}
        self.copies: dict[int, list[int]] = {}
        self.live: list[Bytes] = []
        held = 0
        for position, instruction in enumerate(self.instructions):
            self.live.append(held)
            for event in instruction.inside if isinstance(instruction, Run) else (instruction,):
                if isinstance(event, Alloc):
                    self.begins[event.buffer], self.storage[event.buffer] = position, event.storage
                    self.copies.setdefault(event.storage, []).append(event.buffer)
                    self.size[event.buffer] = executable.charged(event) if event.space else 0
                    held += self.size[event.buffer]
                elif isinstance(event, Release):
                    self.ends[event.buffer] = position
                    held -= self.size[event.buffer]
            for view in _views(instruction):
                self.reads.setdefault(view.base, []).append(position)

    def rows(self) -> Iterator[Region]:
        """Longest rows of ops over elements."""
        first = begin = -1
        count = 0
        for position, instruction in enumerate(self.instructions):
            if isinstance(instruction, Release):
                continue
            fits = isinstance(instruction, Run) and fusible(self.graph.op(instruction.op))
            if fits and begin < 0:
                first, begin = count, position
            elif not fits and begin >= 0:
                yield Region(first, count, begin, position)
                begin = -1
            count += isinstance(instruction, Run)

    def pieces(self, region: Region) -> Iterator[Region]:
        """Cut a row where no value goes across, and where a storage would be there twice."""
        starts = [p for p in range(region.begin, region.end) if isinstance(self.instructions[p], Run)]
        first, begin, reach = region.first, region.begin, -1
        for number, position in enumerate(starts, region.first):
            created = self._created(position)
            apart = position > reach or number - first >= _MOST_RUNS
            if position > begin and (apart or any(self._twice(b, begin) for b in created)):
                yield Region(first, number, begin, position)
                first, begin = number, position
            inside = (p for b in created for p in self.reads.get(b, ()) if p < region.end)
            reach = max((reach, *inside))
        yield Region(first, region.last, begin, region.end)

    def _twice(self, buffer: int, begin: int) -> bool:
        """Tell whether another copy of what a buffer holds, which stays, is live in a stretch before it."""
        position = self.begins[buffer]
        earlier = (b for b in self.copies[self.storage[buffer]] if self.begins[b] < position)
        return any(self.ends.get(b, begin) >= begin for b in earlier) and bool(self.reads.get(buffer))

    def _created(self, position: int) -> list[int]:
        run = self.instructions[position]
        events = run.inside if isinstance(run, Run) else ()
        return [e.buffer for e in events if isinstance(e, Alloc) and e.storage >= 0]

    def fitting(self, region: Region, most: Bytes) -> Iterator[Region]:
        """Halve a stretch until its results fit beside all that is live when it begins."""
        if region.last - region.first < 2:
            return
        left = [
            buffer
            for position in range(region.begin, region.end)
            for buffer in self._created(position)
            if self.ends.get(buffer, region.end) >= region.end
        ]
        if self.live[region.begin] + sum(self.size[buffer] for buffer in left) <= most:
            yield region._replace(left=tuple(self.storage[buffer] for buffer in left))
            return
        half = (region.first + region.last) // 2
        position, count = region.begin, region.first
        while count < half or not isinstance(self.instructions[position], Run):
            count += isinstance(self.instructions[position], Run)
            position += 1
        yield from self.fitting(Region(region.first, half, region.begin, position), most)
        yield from self.fitting(Region(half, region.last, position, region.end), most)

    def worth(self, region: Region) -> bool:
        """Tell whether a stretch has several ops and enough bytes."""
        runs = [i for i in self.instructions[region.begin : region.end] if isinstance(i, Run)]
        moved = sum(math.prod(view.shape) * ITEM_BYTES[view.dtype] for run in runs for view in _views(run))
        return len(runs) > 1 and moved >= _LEAST_BYTES


def _views(instruction: Instruction) -> Iterator[View]:
    """Iterate over the tensors that an instruction reads or hands over."""
    values: tuple[Argument, ...] = ()
    if isinstance(instruction, Run):
        values = (*instruction.arguments, *(value for _, value in instruction.keywords))
    elif isinstance(instruction, Return):
        values = instruction.outputs
    for value in values:
        yield from views(value)


def fusible(op: Op) -> bool:
    """Tell whether an op becomes a loop that can join others."""
    if op.flags & _SERIAL or op.mutates:
        return False
    if not op.target.startswith(("aten.", "prims.")) and op.target not in FOR_COMPILERS:
        return False
    if any(result.view.bits for result in op.results) or not op.results:
        return False
    kernel = resolve(op.target)
    return (
        op.target in _ROWS or op.target in FOR_COMPILERS or torch.Tag.pointwise in getattr(kernel, "tags", ())
    )
