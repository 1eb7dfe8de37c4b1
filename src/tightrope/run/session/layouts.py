"""Choose the layout in which the convolutions of a fused step work, by measurement.

Idea        Kernels take channels-last images in less time on some nets, and in more on others. Where results
            need be equal within a tolerance only (`fuse=True`), the call is traced both ways, the ops of both
            are measured, and what takes less time is planned. Where that does not fit, the other is.
Guarantee   Random results lie as in the model's layouts, so that the same elements are drawn.
Complexity  One more trace, and prices of the ops that are not known.
Gaps        Ops are compared one by one, not steps: what fusing gains in either layout may shift the balance.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from tightrope.capture import measured
from tightrope.capture.program import Program
from tightrope.core import Bytes, CaptureError, Flag, Graph, InfeasibleError, Nanoseconds
from tightrope.lower import lower, simulate
from tightrope.native.hook.allocator import Allocator
from tightrope.plan import base_schedule
from tightrope.run.base.status import StatusLine

_LEAST_GAIN: Final = 0.1
"""Part of the time of all ops that another layout must save."""
_MOST_BYTES: Final = 1 / 16
"""Part of the bytes of a step that it may take more: copies of gradients, that are measured alone in less
time than they take in a step, where what they read has left the caches."""


def faster_layout(
    program: Program, real: Sequence[Any], allocator: Allocator | None, status: StatusLine
) -> Program | None:
    """Trace a call with channels-last convolutions; None where that is not faster, or cannot be.

    Args:
        program: with a backward, as captured.
        real: what it is given.
        allocator: the hook that records allocations.
        status: where progress is shown.
    """
    if program.channels_last is None or not program.has_backward:
        return None
    try:
        other = program.channels_last(real, program.start)
        if other is None or _drawn(other) != _drawn(program):
            return None
        with status.task("measuring ops in two layouts", 1) as tick:
            before, after = (measured(one, real, allocator, tick=tick) for one in (program, other))
    except (
        CaptureError,
        InfeasibleError,
        torch.OutOfMemoryError,
    ):  # said of the model's own layouts, if at all
        return None
    faster = time_of(after.graph) < (1 - _LEAST_GAIN) * time_of(before.graph)
    return other if faster and peak_of(after.graph) <= (1 + _MOST_BYTES) * peak_of(before.graph) else None


def _drawn(program: Program) -> list[tuple[object, ...]]:
    """How random results lie: generators fill memory in order, and draw other elements in another layout."""
    drawn = (op for op in program.graph.ops if Flag.RANDOM in op.flags)
    views = (result.view for op in drawn for result in op.results)
    return [(view.shape, view.strides) for view in views]


def time_of(graph: Graph) -> Nanoseconds:
    """Add up what the ops of a measured graph take."""
    return sum(op.ns for op in graph.ops)


def peak_of(graph: Graph) -> Bytes:
    """Find the most bytes that a measured graph needs at once with every op once."""
    return simulate(lower(graph, base_schedule(graph))).peak
