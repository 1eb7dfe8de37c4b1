"""Attach a proof to a plan."""

from importlib.metadata import version
from typing import Literal

import msgspec

from tightrope.core import Graph, PageIn, Plan
from tightrope.plan.bound.cover import TimeBound, time_bound
from tightrope.plan.bound.floor import lower_bound

Order = Literal["given", "free"]


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
            versions=(("tightrope", version("tightrope")), ("highspy", version("highspy"))),
            order=order,
            cover=bound.cover,
            stages=bound.stages,
        ),
    )


def _method(bound: TimeBound) -> str:
    if bound.stages is not None:
        return "single-op floor, stages"
    return "single-op floor" + (", gap cover" if bound.cover is not None else "")
