"""The plan of a step that may be paged: the faster of recomputing alone and of both together.

Idea        Search without pages first, as for any step. Where that plan is slower than running every op
            once, or there is none, search re-runs and pages from it. What may be paged is what could be
            made again at another time too: a caller that does something else than was planned for gets
            a backward that computes it.
Guarantee   Fits the budget and the slower tier, placed. By its forecast never slower than the plan without
            pages, nor than what the same search finds with pages alone.
Complexity  That of both searches.
Gaps        One call of a model: several that are planned together run without pages. Without the native
            search a step pages only where nothing else fits.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tightrope.core import Bytes, Graph, InfeasibleError, Machine, Plan, StorageId, format_bytes
from tightrope.lower.remainder import droppable
from tightrope.native.interface import missing
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import lower_bound
from tightrope.plan.cache import with_budget
from tightrope.plan.model import pairs_of, producers
from tightrope.plan.options import Options, Progress, Watch
from tightrope.plan.paging.model import PagedSet, tier_limit
from tightrope.plan.paging.schedule import Page, pageable
from tightrope.plan.paging.search import PagingKnobs, paged_schedule, plan_paging
from tightrope.plan.reasons import reasons

RUN_KNOBS: Final = PagingKnobs(moves=20_000)
"""For steps that run: about a CPU-second of search for 100 ops."""


def may_page(graph: Graph) -> tuple[bool, ...]:
    """Tell which storages of a step that runs may be paged; none where several calls are one graph."""
    if len(graph.parts) > 2 or any(part.call for part in graph.parts):
        return (False,) * len(graph.storages)
    can = pageable(graph)
    if len(graph.parts) < 2:
        return can
    again = droppable(graph)
    first = {storage for op in graph.ops[: graph.boundaries[0]] for storage in op.creates}
    return tuple(ok and (s not in first or s in again) for s, ok in enumerate(can))


def solve_paged(
    graph: Graph,
    *,
    budget: Bytes,
    machine: Machine,
    alone: Callable[[], Plan],
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    knobs: PagingKnobs = RUN_KNOBS,
) -> Plan:
    """Plan a step under a total number of bytes, with pages where that is faster.

    Args:
        graph: one training step.
        budget: total bytes in tier 0.
        machine: with a slower tier.
        alone: plans the step without pages.
        seed: of the search.
        seconds: of the search for pages; None = until the default effort is spent.
        progress: called while it searches.
        knobs: effort and switches of the search for pages.

    Raises:
        InfeasibleError: nothing that fits was found, with pages or without.
    """
    can = may_page(graph)
    try:
        plain = alone()
    except InfeasibleError as error:
        if not any(can):
            raise
        plain, found = None, error.smallest_found
    if plain is not None and (plain.forecast.ns == plain.forecast.base_ns or not any(can)):
        return plain
    if missing("paging"):
        return plain or _rescued(graph, budget, machine, found)
    options = Options(seed=seed, watch=Watch(seconds=seconds, budget=budget, progress=progress))
    start = PagedSet(pairs=() if plain is None else pairs_of(graph, plain.schedule))
    try:
        paged = plan_paging(
            graph, machine=machine, budget=budget, knobs=knobs, options=options, start=start, can=can
        )
    except InfeasibleError:
        if plain is not None:
            return plain
        paged = _rescued(graph, budget, machine, found)
    return paged if plain is None or paged.forecast.ns < plain.forecast.ns else plain


def _rescued(graph: Graph, budget: Bytes, machine: Machine, found: Bytes | None) -> Plan:
    """Page all that can be where that fits; else refuse with the smallest budget known."""
    least = smallest_paged(graph, machine)
    if least is not None and least.forecast.total <= budget:
        return with_budget(least, budget)
    known = [found] if found is not None else []
    known += [least.forecast.total] if least is not None else []
    bound, witness = lower_bound(graph)
    who = graph.ops[witness].describe() if witness >= 0 else "the caller's own storages"
    raise InfeasibleError(
        f"the budget is {format_bytes(budget)}; smallest feasible found, with pages or without, "
        f"{format_bytes(min(known)) if known else 'none'} (proved >= {format_bytes(bound)}, whatever is "
        f"paged); largest step: {who}. Ask for more bytes, give pages more room, or take a smaller batch.",
        asked=budget, smallest_found=min(known, default=None), lower_bound=bound, op=who,
    )  # fmt: skip


def smallest_paged(graph: Graph, machine: Machine, *, seed: int = 0) -> Plan | None:
    """Plan a step with every page that there can be; None where there are none or too many for the tier."""
    can = may_page(graph)
    pages = _every_page(graph, can)
    if not pages:
        return None
    plan = assemble(
        graph, paged_schedule(graph, machine, PagedSet(pages=pages)), budget=None, machine=machine,
        planner="paging", seed=seed,
    )  # fmt: skip
    if plan.forecast.tiers[0] > tier_limit(machine):
        return None
    plan = with_budget(plan, plan.forecast.total)
    return replace(plan, reasons=reasons(graph, plan, machine))


def _every_page(graph: Graph, can: tuple[bool, ...]) -> tuple[Page, ...]:
    """List a page for every read of a storage that does not follow the op before."""
    last = dict[StorageId, int](enumerate(producers(graph)))
    pages: list[Page] = []
    for op in graph.ops:
        for storage in op.reads:
            if can[storage] and op.id > last[storage] + 1:
                pages.append(Page(op.id, storage))
            last[storage] = op.id
    return tuple(pages)
