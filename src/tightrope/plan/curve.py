r"""Time against budget: one plan per share of what the given order needs.

Idea        plan at 100 %, 95 %, ... down to the first share that nothing fits, and end with the smallest
            plan found there; then every budget takes the fastest plan known that fits it
Guarantee   every plan fits its budget; time never rises with the budget
Complexity  one search per share, each with an equal part of the time that is left
Gaps        a curve that is cut off by the time lacks its smallest budgets

    time ^  *
         |   \
         |     *
         |       *---*---*---*   <- 100 %: every op once
         +--------------------> budget
"""

import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tightrope.core import Bytes, Graph, InfeasibleError, Machine, Plan
from tightrope.core.arguments import check_seconds
from tightrope.plan.api import whole_bytes
from tightrope.plan.cache import PlanCache, with_budget
from tightrope.plan.reasons import reasons
from tightrope.plan.search import solve

SHARES: Final = (100, 95, 90, 85, 80, 75, 70, 60, 50, 40, 30)
"""Budgets of a curve in percent of what the given order needs."""
_LEAST: Final = 0.1
"""Seconds of a search that comes when the time is over: enough for the cheap planners."""

_PROVING: Final = 0.5
"""Part of the time that must be left for a bound to be proved in full."""


def plan_curve(
    graph: Graph,
    *,
    machine: Machine | None = None,
    shares: tuple[int, ...] = SHARES,
    seconds: float = 15.0,
    placed: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Plan, ...]:
    """Plan a graph at several budgets.

    Args:
        graph: one training step.
        machine: named in the plans.
        shares: in percent of `whole_bytes`, descending.
        seconds: for all of them together, give or take the last search; a budget whose turn comes later
            is left out.
        placed: whether allocations get addresses; see `solve`.
        progress: called before every search with (done, number of shares, what comes).

    Returns:
        Plans by budget, ascending; the first is the smallest that was found where a share was too small.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
        >>> [plan.budget for plan in plan_curve(graph)]
        [128]
    """
    check_seconds("seconds", seconds)
    whole, end = whole_bytes(graph), time.monotonic() + seconds
    cache = PlanCache()
    found: dict[Bytes, Plan] = {}
    for done, share in enumerate(shares):
        left = end - time.monotonic()
        if left <= 0 and found:
            break
        if progress is not None:
            progress(done, len(shares), f"at {share} %")
        part = max(_LEAST, left / (len(shares) - done))
        budget = whole * share // 100
        try:
            found[budget] = solve(
                graph,
                budget=max(1, budget),
                machine=machine,
                seconds=part,
                cache=cache,
                placed=placed,
                # a proof of a small budget can take several times its part of the time
                bound=True if left > _PROVING * seconds else None,
            )
        except InfeasibleError as error:
            least = error.smallest_found
            smallest = None if least is None else cache.best(graph, budget=least, placed=placed)
            if smallest is not None and smallest.budget not in found:
                found[smallest.budget] = replace(smallest, reasons=reasons(graph, smallest, machine))
            # a share of 100 % can miss by what addresses waste; smaller ones are not worth asking then
            break
    return _monotone(found)


def _monotone(found: dict[Bytes, Plan]) -> tuple[Plan, ...]:
    """Give every budget the fastest of the plans that fit it."""
    curve: list[Plan] = []
    for budget, plan in sorted(found.items()):
        faster = curve[-1] if curve and curve[-1].forecast.ns < plan.forecast.ns else None
        curve.append(plan if faster is None else with_budget(faster, budget))
    return tuple(curve)
