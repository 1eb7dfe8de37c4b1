"""The form in which a fused call takes least time: its layout, and the library of its products.

Idea        Kernels take channels-last images in less time on some nets, and in more on others; products
            are faster by torch's own ops or by oneDNN. Where results need be equal within a tolerance only
            (`fuse=True`), the call is traced both ways and the ops of both are measured. What takes less
            time is planned.
Guarantee   A budget that suffices for the call as captured suffices with ``fuse=True``: where no plan of the
            rewritten call fits, the call as captured is planned. Random results lie as in the model's
            layouts, so that the same elements are drawn. No product is given to a kernel that took more time.
Complexity  One more trace, and prices of the ops that are not known.
Gaps        Ops are compared one by one, not steps: what fusing gains in either layout may shift the balance.
            oneDNN's kernel copies a transposed first matrix: products stay with torch's op, those with the
            largest copies first, until the peak of the step with every op once hardly rises.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import torch

from tightrope.capture import measured
from tightrope.capture._inductor import compiler_missing
from tightrope.capture.products import with_onednn
from tightrope.capture.program import Program
from tightrope.core import Bytes, CaptureError, Flag, Graph, InfeasibleError, Nanoseconds, Op
from tightrope.lower import lower, simulate
from tightrope.native.hook.allocator import Allocator
from tightrope.plan import base_schedule
from tightrope.run.base.status import StatusLine
from tightrope.run.session.calls import Calls
from tightrope.run.session.captured import Rewritten
from tightrope.run.session.equal_forms import equal_form

_LAYOUT_GAIN: Final = 0.1
"""Part of the time of all ops that another layout must save."""
_LAYOUT_BYTES: Final = 1 / 16
"""Part of the bytes of a step that it may take more: copies of gradients, that are measured alone in less
time than they take in a step, where what they read has left the caches."""
_PRODUCT_GAIN: Final = 0.1
"""Part of the time of one product that another library must save."""
_PRODUCTS_GAIN: Final = 0.01
"""Part of the time of all ops that the choice must save."""
_PRODUCT_BYTES: Final = 1 / 64
"""Part of the bytes of a step that it may take more."""
_SAID_AS_CAPTURED: Final = (CaptureError, InfeasibleError, torch.OutOfMemoryError)
"""Errors that are said of the call as captured, if at all."""


@dataclass(frozen=True, eq=False)
class FasterForm:
    """A call that computes what another one does, in less time.

    Attributes:
        program: that is planned.
        rewritten: what it stands for, and how it differs.
    """

    program: Program
    rewritten: Rewritten

    @property
    def misfit(self) -> str:
        """Why the call runs as captured, where the form was refused."""
        return f"{self.rewritten.said}, it does not fit"


def faster_form(
    program: Program, real: Sequence[Any], allocator: Allocator | None, status: StatusLine
) -> FasterForm | None:
    """Rewrite a call into what takes less time here; None where that is the call as captured.

    Without a compiler, nothing is fused and nothing is rewritten.
    """
    if compiler_missing():
        return None
    laid_out = faster_layout(program, real, allocator, status)
    products = faster_products(laid_out or program, real, allocator, status)
    if laid_out is None and products is None:
        return None
    made, num = products or (laid_out or program, 0)
    return FasterForm(made, Rewritten(program.graph, channels_last=laid_out is not None, num_products=num))


def add_fastest(calls: Calls, program: Program, real: Sequence[Any]) -> int:
    """Add a captured graph and give its number; a fused one in the form that takes least time."""
    fuse, allocator = calls.settings.fuse, calls.accounts.allocator
    equal, most = equal_form(calls, program, real)
    form = faster_form(equal, real, allocator, calls.status) if fuse else None
    if equal is not program:
        form = form or FasterForm(equal, Rewritten(program.graph))
        form = replace(form, rewritten=replace(form.rewritten, source=program.graph, equal=True, most=most))
    if form is None:
        return calls.add(program, real)
    try:
        number = calls.add(form.program, real, rewritten=form.rewritten)
    except InfeasibleError:
        return _add_misfit(calls, program, real, form)
    calls.captured[number].plain = program
    return number


def add_plain(calls: Calls, number: int, args: Sequence[Any]) -> int | None:
    """Add the graph as captured after it was refused as rewritten; None = it was not rewritten."""
    one = calls.captured[number]
    program, one.plain = one.plain, None
    if program is None or one.rewritten is None:
        return None
    return _add_misfit(calls, program, args, FasterForm(one.program, one.rewritten))


def _add_misfit(calls: Calls, program: Program, args: Sequence[Any], form: FasterForm) -> int:
    if form.rewritten.equal:
        program.call.form = form.misfit
    return calls.add(program, args, form.misfit)


def _measured(
    program: Program,
    other: Program,
    real: Sequence[Any],
    allocator: Allocator | None,
    task: AbstractContextManager[Any],
) -> tuple[Graph, Graph] | None:
    """Measure the ops of two forms of a call; None where those of one cannot be."""
    try:
        with task as tick:
            return (
                measured(program, real, allocator, tick=tick).graph,
                measured(other, real, allocator, tick=tick).graph,
            )
    except _SAID_AS_CAPTURED:
        return None


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
    except _SAID_AS_CAPTURED:
        return None
    if other is None or _drawn(other) != _drawn(program):
        return None
    both = _measured(program, other, real, allocator, status.task("measuring ops in two layouts", 1))
    if both is None:
        return None
    before, after = both
    faster = time_of(after) < (1 - _LAYOUT_GAIN) * time_of(before)
    return other if faster and peak_of(after) <= (1 + _LAYOUT_BYTES) * peak_of(before) else None


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
    both = _measured(program, every, real, allocator, status.task("measuring products by two libraries", 1))
    names = _chosen(*both) if both is not None else set()
    made = with_onednn(program, names) if names else None
    return None if made is None else (made, len(names))


def _chosen(plain: Graph, every: Graph) -> set[str]:
    """Choose the products that take less time in the second of two measured graphs, while bytes allow it."""
    least, most = (1 - _PRODUCTS_GAIN) * time_of(plain), (1 + _PRODUCT_BYTES) * peak_of(plain)
    pairs = zip(plain.ops, every.ops, strict=True)
    faster = [other for one, other in pairs if other.ns < (1 - _PRODUCT_GAIN) * one.ns]
    chosen = {op.id: op for op in faster if op.target != plain.ops[op.id].target}
    while chosen:
        made = msgspec.structs.replace(plain, ops=tuple(chosen.get(op.id, op) for op in plain.ops))
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
