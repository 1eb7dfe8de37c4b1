"""Attach a proof to a plan."""

from importlib.metadata import version
from typing import Final, Literal

import msgspec

from tightrope.core import Graph, Nanoseconds, PageIn, Plan
from tightrope.core.version import VERSION
from tightrope.plan.bound.cover import TimeBound, further, time_bound
from tightrope.plan.bound.floor import lower_bound

Order = Literal["given", "free"]

_CLOSE: Final = 0.03
_FAR: Final = 0.4
_EFFORT: Final = (16, 2)
"""Factor on the effort where a bound is close, for graphs of up to `_SMALL_OPS` ops and larger ones."""
_SMALL_OPS: Final = 400


def certify(graph: Graph, plan: Plan, *, order: Order = "given", bound: TimeBound | None = None) -> Plan:
    """Give a plan a certificate: least bytes with a witness, least time with its numbers.

    Args:
        graph: what was planned, in base order.
        plan: any plan of it.
        order: whether the bounds hold in base order, or in any order.
        bound: on the time at the plan's budget, where it is known already; None = derived here.

    Returns:
        The plan; its ``proved`` says whether no schedule that recomputes is faster within the budget. A
        plan that pages keeps the bound of running every op once: it may beat those that do not.
    """
    base, taken = graph.base_ns, plan.forecast.ns
    if any(isinstance(step, PageIn) for step in plan.schedule.steps):
        bound = TimeBound(0)
    elif bound is None:
        bound = time_bound(
            graph, budget=plan.budget, free_order=order == "free", upper_ns=max(0, taken - base)
        )
    least, witness = lower_bound(graph, free_order=order == "free")
    return msgspec.structs.replace(
        plan,
        certificate=msgspec.structs.replace(
            plan.certificate,
            lower_bound=least,
            witness=witness,
            method=_method(bound),
            ns_bound=base + bound.extra_ns,
            proved=taken == base + bound.extra_ns,
            versions=(("tightrope", VERSION), ("highspy", version("highspy"))),
            order=order,
            cover=bound.cover,
            stages=bound.stages,
        ),
    )


def closer(graph: Graph, plan: Plan, bound: TimeBound, *, order: Order = "given") -> TimeBound:
    """Try harder where the time that a plan adds may be the optimum.

    Within 3 %, the same search goes on; within 40 %, every op that is short of bytes is looked at, if that
    bound is installed.

    Args:
        graph: what was planned, in base order.
        plan: any plan of it.
        bound: on the time at the plan's budget.
        order: whether the bound holds in base order, or in any order.

    Returns:
        The better of the two bounds.
    """
    added = plan.forecast.ns - graph.base_ns
    if 0 < added - bound.extra_ns <= _CLOSE * added:
        effort = _EFFORT[len(graph.ops) > _SMALL_OPS]
        free = order == "free"
        harder = time_bound(graph, budget=plan.budget, free_order=free, upper_ns=added, effort=effort)
        bound = max(bound, harder, key=_extra)
    close = further("close")
    if close is not None and order == "given" and 0 < added - bound.extra_ns <= _FAR * added:
        bound = max(bound, close(graph, budget=plan.budget, upper_ns=added) or bound, key=_extra)
    return bound


def _extra(bound: TimeBound) -> Nanoseconds:
    return bound.extra_ns


def _method(bound: TimeBound) -> str:
    if bound.stages is not None:
        return "single-op floor, stages"
    return "single-op floor" + (", gap cover" if bound.cover is not None else "")
