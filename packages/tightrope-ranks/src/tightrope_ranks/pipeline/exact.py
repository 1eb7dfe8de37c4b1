"""The fastest order of a small pipeline, with a proof: constraint programming.

Idea        Every computation and every message is an interval. A rank computes one thing at a time, a
            directed pair of ranks transfers one, and what a rank keeps is a load on its bytes. Micro-batches
            are alike, so every stage may take them in ascending order: only how stages and directions mix
            is open.
Source      Zero-bubble pipelines (Qi et al. 2024) as an integer program; here CP-SAT (`tightrope[exact]`).
Guarantee   No order of these computations takes less than ``ns_bound``: what is left out (when receives are
            posted, gradients that wait to be sent) only adds time and bytes. The order returned was simulated
            with its messages; where it takes ``ns_bound``, it is proved best, to the bit of one process.
Complexity  Exponential; meant for up to about a hundred computations.
Gaps        One placement, nothing computed again, no divided parameters, no frozen stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tightrope.core import Machine, TightropeError
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.pipeline.language import Action, Orders
from tightrope_ranks.pipeline.simulate import DeadlockError, simulate
from tightrope_ranks.pipeline.wire import with_wires
from tightrope_ranks.values.ranks import StageWork
from tightrope_shared.cp import ConstraintProgram, Worker, constant

MOST: Final = 200
"""Computations beyond which nothing is tried."""
_AHEAD: Final = (2, 1, 4, 8, 1 << 20)


@dataclass(frozen=True, slots=True)
class ExactOrders:
    """What constraint programming found.

    Attributes:
        orders: computations of every rank; empty where none that fits is known.
        wired: the same with their messages.
        ahead: of the receives.
        ns: time in the simulator; 0 = none.
        peak: bytes of the fullest rank.
        ns_bound: time below which no order exists (proved).
        infeasible: whether no order fits (proved).
    """

    orders: Orders
    wired: Orders
    ahead: int
    ns: Nanoseconds
    peak: Bytes
    ns_bound: Nanoseconds
    infeasible: bool = False

    @property
    def proved(self) -> bool:
        """Whether no order of this placement is faster."""
        return self.infeasible or (bool(self.orders) and self.ns <= self.ns_bound)


def exact_orders(
    work: StageWork,
    machine: Machine,
    *,
    budget: Bytes = 0,
    split: bool = False,
    effort: float = 10.0,
    seed: int = 0,
    seconds: float | None = None,
) -> ExactOrders:
    """Search all orders of a small pipeline.

    Args:
        work: what is done, without divided parameters.
        machine: whose links messages go over.
        budget: bytes per rank; 0 = no limit.
        split: divide every backward into halves.
        effort: CP-SAT's deterministic seconds; equal arguments without ``seconds`` give equal answers.
        seed: of its random choices.
        seconds: by the clock, None = unlimited.

    Raises:
        TightropeError: OR-Tools is not installed, or the pipeline is too large or of another kind.

    Example:
        >>> from tightrope.core import DeviceLink, Tier
        >>> from tightrope_ranks.values.ranks import StageCost
        >>> work = StageWork((StageCost(1, 1),) * 2, (0, 1), 2)
        >>> line = Machine("m", (Tier("hbm", 1),), devices=2, links=(DeviceLink("l", bandwidth=1e18),))
        >>> exact_orders(work, line).ns
        6
    """
    count = len(work.stages) * work.num_micro_batches * (3 if split else 2)
    other = ", with divided parameters" if work.sharded else ", with frozen stages" if work.frozen else ""
    if other or count > MOST:
        raise TightropeError(
            f"exact orders of {count} computations{other}: at most {MOST} without divided parameters and "
            "frozen stages are searched. Leave out exact, or take fewer micro-batches."
        )
    model = _OrderModel(work, machine, budget, split)
    with Worker() as worker:
        found = worker.solve(model.program, effort=effort, seed=seed, seconds=seconds)
    least = round(found.bound)
    if not found.values:
        return ExactOrders((), (), 0, 0, 0, least, infeasible=found.proved)
    orders = model.orders(found.values)
    best = ExactOrders((), (), 0, 0, 0, least)
    for ahead in _AHEAD:
        wired = with_wires(work, orders, ahead=ahead)
        try:
            timeline = simulate(work, machine, wired)
        except DeadlockError:
            continue
        peak = max(timeline.peaks)
        if (not budget or peak <= budget) and (not best.orders or timeline.ns < best.ns):
            best = ExactOrders(orders, wired, ahead, timeline.ns, peak, least)
    return best


@dataclass(slots=True)
class _RankLoad:
    """Intervals of one rank: what it computes, and what it keeps."""

    computes: list[int] = field(default_factory=list)
    keeps: list[int] = field(default_factory=list)
    heights: list[Bytes] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)


class _OrderModel:
    """The constraint program of a pipeline."""

    def __init__(self, work: StageWork, machine: Machine, budget: Bytes, split: bool) -> None:
        self.work, self.machine, self.split = work, machine, split
        self.program = ConstraintProgram()
        self.start: dict[Action, int] = {}
        self.ranks = [_RankLoad() for _ in range(work.num_ranks)]
        self.links: dict[tuple[int, int], list[int]] = {}
        self.back = "I" if split else "B"
        self.horizon = self._horizon()
        self.end = self.program.integer(0, self.horizon)
        self.program.objective.append((self.end, 1))
        for action in self._actions():
            self._computation(action)
        for action in self._actions():
            self._depends(action)
        for stage in range(len(work.stages)):
            self._reduction(stage)
            for micro in range(work.num_micro_batches):
                self._keeps(stage, micro)
        for rank, mine in enumerate(self.ranks):
            self._one_at_a_time(mine.computes)
            self._one_at_a_time(mine.sums)
            if budget:
                room = budget - work.held(rank)
                self.program.cumulatives.append((mine.keeps, mine.heights, constant(max(0, room))))
        for transfers in self.links.values():
            self._one_at_a_time(transfers)

    def orders(self, values: tuple[int, ...]) -> Orders:
        """Read the order of every rank from a solution."""
        rows: list[list[tuple[int, int, Action]]] = [[] for _ in self.ranks]
        for at, (action, variable) in enumerate(self.start.items()):
            rows[self.work.owners[action.stage]].append((values[variable], at, action))
        return tuple(tuple(action for _, _, action in sorted(row)) for row in rows)

    def _actions(self) -> Iterator[Action]:
        """List computations, each behind those that it needs."""
        num = len(self.work.stages)
        for micro in range(self.work.num_micro_batches):
            yield from (Action(stage, "F", micro) for stage in range(num))
            for stage in reversed(range(num)):
                yield Action(stage, self.back, micro)
                if self.split:
                    yield Action(stage, "W", micro)

    def _duration(self, action: Action) -> Nanoseconds:
        cost = self.work.stages[action.stage]
        if action.kind == "F":
            return cost.forward
        if action.kind == "W":
            return cost.weight
        return cost.backward + (0 if self.split else cost.weight)

    def _horizon(self) -> Nanoseconds:
        """Time of one thing after another, which is enough."""
        each = sum(map(self._duration, self._actions()))
        hops = sum(sum(self._message(stage)) for stage in range(len(self.work.stages) - 1))
        return each + 2 * self.work.num_micro_batches * hops + sum(one.reduce for one in self.work.stages)

    def _message(self, stage: int) -> tuple[Nanoseconds, Nanoseconds]:
        """Latency and time on the link of what a stage hands to the next one."""
        one, other = self.work.owners[stage], self.work.owners[stage + 1]
        if one == other:
            return 0, 0
        link = self.machine.links[self.machine.link(one * self.work.replicas, other * self.work.replicas)]
        latency = round(1e9 * link.latency)
        return latency, link.message_ns(self.work.stages[stage].output) - latency

    def _one_at_a_time(self, intervals: list[int]) -> None:
        if len(intervals) > 1:
            self.program.cumulatives.append((intervals, [1] * len(intervals), constant(1)))

    def _computation(self, action: Action) -> None:
        taken = self._duration(action)
        start = self.program.integer(0, self.horizon)
        self.start[action] = start
        mine = self.ranks[self.work.owners[action.stage]]
        interval = self.program.interval((start, 0), constant(taken), (start, taken))
        mine.computes.append(interval)
        mine.keeps.append(interval)
        mine.heights.append(self.work.stages[action.stage].work)
        self.program.at_most((start, taken), (self.end, 0))

    def _after(self, first: Action, then: Action) -> None:
        self.program.at_most((self.start[first], self._duration(first)), (self.start[then], 0))

    def _depends(self, action: Action) -> None:
        stage, kind, micro = action
        if micro:
            self._after(Action(stage, kind, micro - 1), action)
        if kind == "W":
            self._after(Action(stage, "I", micro), action)
            return
        if kind != "F":
            self._after(Action(stage, "F", micro), action)
        there = stage - 1 if kind == "F" else stage + 1
        if not 0 <= there < len(self.work.stages):
            return
        before = Action(there, kind, micro)
        latency, taken = self._message(min(stage, there))
        if self.work.owners[there] == self.work.owners[stage]:
            self._after(before, action)
            return
        leaves = self.program.integer(0, self.horizon)
        self.program.at_most((self.start[before], self._duration(before)), (leaves, 0))
        self.program.at_most((leaves, taken + latency), (self.start[action], 0))
        interval = self.program.interval((leaves, 0), constant(taken), (leaves, taken))
        self.links.setdefault((self.work.owners[there], self.work.owners[stage]), []).append(interval)

    def _reduction(self, stage: int) -> None:
        taken = self.work.stages[stage].reduce if self.work.replicas > 1 else 0
        if taken:
            start = self.program.integer(0, self.horizon)
            last = Action(stage, "W" if self.split else "B", self.work.num_micro_batches - 1)
            self.program.at_most((self.start[last], self._duration(last)), (start, 0))
            interval = self.program.interval((start, 0), constant(taken), (start, taken))
            self.ranks[self.work.owners[stage]].sums.append(interval)
            self.program.at_most((start, taken), (self.end, 0))

    def _keep(self, size: Bytes, rank: int, first: Action, last: Action) -> None:
        """Count bytes from the beginning of one computation to the end of another."""
        if size:
            length = self.program.integer(0, self.horizon)
            begin, end = (self.start[first], 0), (self.start[last], self._duration(last))
            self.ranks[rank].keeps.append(self.program.interval(begin, (length, 0), end))
            self.ranks[rank].heights.append(size)

    def _keeps(self, stage: int, micro: int) -> None:
        cost, owners = self.work.stages[stage], self.work.owners
        rank = owners[stage]
        forward, back = Action(stage, "F", micro), Action(stage, self.back, micro)
        apart = stage > 0 and owners[stage - 1] != rank
        self._keep(cost.output + cost.saved + (cost.input if apart else 0), rank, forward, back)
        if self.split:
            self._keep(cost.half, rank, back, Action(stage, "W", micro))
        if stage:  # the gradient of its input, which stays where the stage before is its own
            self._keep(cost.input, rank, back, back if apart else Action(stage - 1, self.back, micro))
        if stage + 1 < len(owners) and owners[stage + 1] != rank:
            self._keep(cost.output, rank, back, back)
