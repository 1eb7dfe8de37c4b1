"""The form in which a fused call takes least time: its layout, and the library of its products.

Idea        A call is rewritten step by step, each step where measuring says so; see `layouts` and `products`.
Guarantee   A budget that suffices for the call as captured suffices with ``fuse=True``: where no plan of the
            rewritten call fits, the call as captured is planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightrope.capture._inductor import compiler_missing
from tightrope.capture.program import Program
from tightrope.core import InfeasibleError
from tightrope.native.hook.allocator import Allocator
from tightrope.run.base.status import StatusLine
from tightrope.run.session.calls import Calls
from tightrope.run.session.captured import Rewritten
from tightrope.run.session.equal_forms import equal_form
from tightrope.run.session.layouts import faster_layout
from tightrope.run.session.products import faster_products


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
