"""A schedule that pages whatever it must, weights included, so that every op fits a number of bytes.

Idea        Run the ops in the given order, page by farthest next use (`residency`), and run again what is
            cheaper to make than to page (`economy`). What the caller holds in a slower tier
            (`Storage.home`) begins there, and goes back there after its last change.
Source      Belady 1966 (farthest next use); POET (ICML 2022) for what may be paged or made again
Guarantee   First runs keep the order given. Live bytes never exceed the limit. A limit below
            `floor_bytes` is refused with the op that needs more: no schedule of that order does with fewer.
            Re-runs never cost more than they save.
Complexity  Ops times what is live at once; times the walks of the search.
Gaps        See `residency` and `economy`.

    tier 0 ^   +-w-+      +--w'--+           w is paged in, read, dropped; paged in again, changed, paged out
           |   |   |      |      |
    tier 1 |---+---+------+------+---w'---
           +---+---+------+------+-------> ops
"""

import dataclasses
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final, NoReturn

from msgspec.structs import replace

from tightrope.core import (
    Bytes,
    Graph,
    InfeasibleError,
    Op,
    PageIn,
    Plan,
    Schedule,
    StepIndex,
    StorageId,
    fitted,
    format_bytes,
)
from tightrope.core.machine import Machine
from tightrope.plan.assemble import assemble
from tightrope.plan.reasons import reasons
from tightrope_micro.paging.economy import Economy, cheapest
from tightrope_micro.paging.residency import NEVER, CopyPrices, Residency, TooLargeError, WalkChoice

_TRIES: Final = 24
"""Limits on live bytes that are tried, each smaller by what the placement before was too large."""
_ONCE: Final = WalkChoice()
_STAY: Final = WalkChoice(stay=True)
_SEARCHES: Final = 10
"""Limits for which re-runs are searched."""


def plan_resident(
    graph: Graph, *, budget: Bytes, machine: Machine, seed: int = 0, economy: Economy | None = None
) -> Plan:
    """Plan a step under a number of bytes in tier 0, with as many pages as that takes.

    Args:
        graph: one training step, in one part.
        budget: bytes of the arena.
        machine: with a slower tier.
        seed: of the placer.
        economy: what to run ops again for, and limits of time and energy; None = every op runs once.

    Raises:
        InfeasibleError: an op needs more bytes, no placement within them was found, or a step within them
            takes more time or energy than it may.
    """
    asked = _Asked(fitted(graph, machine.tiers[0].alignment), budget, machine, seed)
    plan = _searched(asked, economy, _ONCE) if economy is None or economy.pages else _unpaged(asked, economy)
    if economy is not None:
        _check(plan, economy)
    return replace(plan, reasons=reasons(asked.graph, plan, machine))


@dataclass(frozen=True)
class _Asked:
    """What is planned, under which bytes, for what.

    Attributes:
        graph: fitted to the machine's alignment.
        budget: bytes of the arena.
        machine: with a slower tier.
        seed: of the placer.
    """

    graph: Graph
    budget: Bytes
    machine: Machine
    seed: int

    def placed(self, schedule: Schedule) -> Plan:
        """Give a schedule addresses."""
        return assemble(
            self.graph, schedule, budget=self.budget, machine=self.machine, planner="resident", seed=self.seed
        )

    def num_paged(self, plan: Plan) -> int:
        """Count page-ins of what ops make."""
        pages = (one.storage for one in plan.schedule.steps if isinstance(one, PageIn))
        return sum(not self.graph.storages[storage].home for storage in pages)


def _searched(asked: _Asked, economy: Economy | None, start: WalkChoice) -> Plan:
    plan, limit = _once(asked, start)
    return plan if economy is None else _cheaper(asked, plan, limit, economy, start)


def _unpaged(asked: _Asked, economy: Economy) -> Plan:
    """Plan with nothing paged that ops make; where that takes re-runs, from a plan with pages.

    Raises:
        InfeasibleError: none was found; names the smallest plan without re-runs.
    """
    try:
        return _searched(asked, economy, _STAY)
    except InfeasibleError as error:
        if not economy.reruns:
            raise
        refused = error
    try:
        plan = _searched(asked, economy, _ONCE)
    except InfeasibleError:
        plan = None  # what it names holds with pages alone
    if plan is not None and not asked.num_paged(plan):
        return plan
    raise InfeasibleError(
        f"{refused} To run ops again did not do.",
        asked=asked.budget, smallest_found=refused.smallest_found, lower_bound=floor_bytes(asked.graph)[0],
        op=refused.op,
    )  # fmt: skip


def _once(asked: _Asked, choice: WalkChoice) -> tuple[Plan, Bytes]:
    """Plan without re-runs; returns the limit on live bytes too.

    Raises:
        InfeasibleError: names the plan of the least live bytes, which is tried under every budget.
    """
    graph, budget = asked.graph, asked.budget
    need, witness = floor_bytes(graph, stay=choice.stay)
    limit, found = max(budget, need), None
    for left in reversed(range(_TRIES)):
        try:
            plan = asked.placed(resident_schedule(graph, limit, choice))
        except InfeasibleError:
            break
        if plan.forecast.total <= budget:
            return plan, limit
        if limit == need:
            found = plan.forecast.total
            break
        smaller = limit - max(plan.forecast.total - max(budget, need), graph.alignment)
        limit = max(need, smaller) if left > 1 else need
    _refuse(graph, budget, need, witness, found, stay=choice.stay)


def _cheaper(asked: _Asked, once: Plan, limit: Bytes, economy: Economy, start: WalkChoice) -> Plan:
    """Search re-runs, place what was found, and search again under fewer bytes where it does not fit."""
    graph, machine = asked.graph, asked.machine
    chosen, prices, need = start, CopyPrices.of(graph, machine), floor_bytes(graph)[0]
    for _ in range(_SEARCHES):
        chosen = cheapest(graph, machine, limit, economy, start=chosen)
        if chosen == start:
            break
        plan = asked.placed(resident_schedule(graph, limit, chosen, prices))
        over = plan.forecast.total - once.budget
        if over <= 0:
            pages = {id(one): 0 if economy.pages else asked.num_paged(one) for one in (plan, once)}
            return min(plan, once, key=lambda found: (pages[id(found)], *_cost(found, economy)))
        limit, economy = limit - over, dataclasses.replace(economy, walks=max(2, economy.walks // 2))
        if limit < need:
            break
    return once


def _cost(plan: Plan, economy: Economy) -> tuple[float, ...]:
    return economy.cost(plan.forecast.ns, plan.forecast.joules)


def _check(plan: Plan, economy: Economy) -> None:
    """Refuse a plan that takes more time or energy than it may."""
    figures, found = plan.forecast, []
    if _cost(plan, economy)[0] == 0:
        return
    if economy.seconds is not None and figures.ns > economy.seconds * 1e9:
        found.append(f"{_above(figures.ns / 1e9)} s where {economy.seconds:g} s were asked")
    if economy.joules is not None and figures.joules > economy.joules:
        found.append(f"{_above(figures.joules)} J where {economy.joules:g} J were asked")
    raise InfeasibleError(
        f"within {plan.budget} B for the arena, the best step that was found takes {' and '.join(found)} "
        "(modelled). Ask for that much, give it more RAM, or take a smaller model.",
        asked=plan.budget,
    )


def _above(value: float) -> str:
    """Write a number with six digits, rounded up, so that it works as a limit."""
    unit = 10.0 ** (floor(log10(value)) - 5) if value > 0 else 1.0
    return f"{ceil(value / unit * (1 - 1e-12)) * unit:.6g}"


def floor_bytes(graph: Graph, *, stay: bool = False) -> tuple[Bytes, StepIndex]:
    """Find the bytes that one op needs at once, and the op: no schedule of this order does with fewer.

    Args:
        graph: fitted to the machine's alignment.
        stay: whether what ops make stays until it is read for the last time.
    """
    last = _last_uses(graph)
    kept = sum(s.size for s in graph.storages if s.external and not s.home)
    needs = []
    waiting: set[StorageId] = set()
    for op in graph.ops:
        waits = sum(graph.storages[s].size for s in waiting.difference(op.reads))
        needs.append(kept + waits + _reads(graph, op) + _makes(graph, op, last))
        kept += sum(graph.storages[s].size for s in op.creates if graph.storages[s].resident_at_end)
        if stay:
            waiting.update(s for s in op.creates if not graph.storages[s].resident_at_end)
            waiting.difference_update([s for s in waiting if last[s] <= op.id])
    most = max(needs, default=kept)
    return most, needs.index(most) if needs else -1


def resident_schedule(
    graph: Graph, limit: Bytes, choice: WalkChoice = _ONCE, prices: CopyPrices | None = None
) -> Schedule:
    """Page in what ops read, and page out or drop what is used farthest in the future.

    Args:
        graph: one training step, in one part, fitted to the machine's alignment.
        limit: on live bytes.
        choice: what runs again, and what leaves; as it is, nothing does, and by distance alone.
        prices: of copies, where they decide what leaves.

    Raises:
        InfeasibleError: an op needs more.

    Example:
        >>> from tightrope.core import Storage
        >>> weight = Storage(0, 64, external=True, home=1)
        >>> graph = Graph((Op(0, "a", "a", (0,), (1,)), Op(1, "b", "b", (1,))), (weight, Storage(1, 64)))
        >>> [type(step).__name__ for step in resident_schedule(graph, 128).steps]
        ['PageIn', 'Wait', 'Compute', 'Free', 'Compute', 'Free']
    """
    try:
        return Schedule(tuple(Residency(graph, choice, limit, prices).walk().steps))
    except TooLargeError as error:
        _refuse(graph, limit, error.need, error.run.op, None, stay=choice.stay)


def _last_uses(graph: Graph) -> dict[StorageId, StepIndex]:
    last: dict[StorageId, StepIndex] = {}
    for op in graph.ops:
        last.update(dict.fromkeys((*op.reads, *op.creates), op.id))
    last.update((s.id, NEVER) for s in graph.storages if s.resident_at_end)
    return last


def _reads(graph: Graph, op: Op) -> Bytes:
    """Bytes that an op reads, without what is counted already: it stays from when it is made."""
    reads = (graph.storages[s] for s in op.reads)
    return sum(s.size for s in reads if s.home or not (s.external or s.resident_at_end))


def _makes(graph: Graph, op: Op, last: dict[StorageId, StepIndex]) -> Bytes:
    """Bytes that an op allocates: not its first result where it writes that over what ends at it."""
    written = op.over >= 0 and last[op.over] == op.id
    return sum(graph.storages[s].size for s in (op.creates[1:] if written else op.creates))


def _refuse(
    graph: Graph, budget: Bytes, need: Bytes, witness: StepIndex, found: Bytes | None, *, stay: bool
) -> NoReturn:
    op = graph.ops[witness]
    parts = [
        f"{format_bytes(graph.storages[s].bytes)} {graph.storages[s].module or graph.storages[s].label}"
        for s in sorted({*op.reads, *op.creates}, key=lambda s: -graph.storages[s].bytes)[:4]
    ]
    placed = f"; smallest found with addresses {found} B" if found is not None else ""
    who = "with what waits for later ops" if stay else "alone"
    raise InfeasibleError(
        f"the arena has {budget} B; {op.describe()} {who} needs {need} B at once "
        f"({', '.join(parts)}){placed}. {'Allow pages, ask' if stay else 'Ask'} for more RAM, take a "
        "smaller layer or a smaller batch.",
        asked=budget, smallest_found=found, lower_bound=need, op=op.describe(),
    )  # fmt: skip
