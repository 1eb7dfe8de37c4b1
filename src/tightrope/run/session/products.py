"""Choose the library that computes the matrix products of a fused step, by measurement.

Idea        Where results need be equal within a tolerance only (`fuse=True`), products are measured by
            torch's own ops and by oneDNN, and each takes what takes less time.
Guarantee   No product is given to a kernel that took more time when it was measured.
Complexity  Prices of one op per distinct product.
Gaps        oneDNN's kernel copies a transposed first matrix: products stay with torch's op, those with the
            largest copies first, until the peak of the step with every op once hardly rises.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from msgspec.structs import replace

from tightrope.capture import measured
from tightrope.capture.products import with_onednn
from tightrope.capture.program import Program
from tightrope.core import Bytes, CaptureError, Graph, InfeasibleError, Op
from tightrope.native.hook.allocator import Allocator
from tightrope.run.base.status import StatusLine
from tightrope.run.session.layouts import peak_of, time_of

_LEAST_GAIN: Final = 0.1
"""Part of the time of one product that another library must save."""
_LEAST_GAIN_OF_ALL: Final = 0.01
"""Part of the time of all ops that the choice must save."""
_MOST_BYTES: Final = 1 / 64
"""Part of the bytes of a step that it may take more."""


def faster_products(
    program: Program, real: Sequence[Any], allocator: Allocator | None, status: StatusLine
) -> tuple[Program, int] | None:
    """Give products to the faster of two libraries; None where that is torch's own, or nothing else fits.

    Args:
        program: as captured.
        real: what it is given.
        allocator: the hook that records allocations.
        status: where progress is shown.

    Returns:
        The program, read again, and the number of products that oneDNN computes.
    """
    every = with_onednn(program)
    if every is None:
        return None
    try:
        with status.task("measuring matrix products by two libraries", 1) as tick:
            before, after = (measured(one, real, allocator, tick=tick) for one in (program, every))
    except (CaptureError, InfeasibleError, torch.OutOfMemoryError):  # said of torch's own ops, if at all
        return None
    names = _chosen(before.graph, after.graph)
    made = with_onednn(program, names) if names else None
    return None if made is None else (made, len(names))


def _chosen(plain: Graph, every: Graph) -> set[str]:
    """Choose the products that take less time in the second of two measured graphs, while bytes allow it."""
    least, most = (1 - _LEAST_GAIN_OF_ALL) * time_of(plain), (1 + _MOST_BYTES) * peak_of(plain)
    pairs = zip(plain.ops, every.ops, strict=True)
    faster = [other for one, other in pairs if other.ns < (1 - _LEAST_GAIN) * one.ns]
    chosen = {op.id: op for op in faster if op.target != plain.ops[op.id].target}
    while chosen:
        made = replace(plain, ops=tuple(chosen.get(op.id, op) for op in plain.ops))
        if time_of(made) >= least:
            break
        if peak_of(made) <= most:
            return {op.name for op in chosen.values()}
        largest = max(map(_copied, chosen.values()))
        chosen = {number: op for number, op in chosen.items() if _copied(op) < largest}
    return set()


def _copied(op: Op) -> Bytes:
    """Bytes of the temporaries of an op."""
    return sum(allocation.bytes for allocation in op.allocations if allocation.storage < 0)
