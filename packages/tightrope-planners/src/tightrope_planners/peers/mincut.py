"""Fusion-aware minimum cut: which forward values to keep for the backward, and which to make again.

Idea        A vertex per op and two per storage. Cutting a storage in two keeps it, at the price of its
            traffic and of its bytes at every op that it idles through; cutting an op from the source
            runs it again, at its price. Prices of bytes stand on time points and rise where the
            simulated plan exceeds the budget, so that only what is alive at a peak becomes expensive.
Source      He and Yu, Transcending Runtime-Memory Tradeoffs (MLSys 2023), for the cut; the prices of
            re-runs, random ops through their replays, and prices on time points are additions
Guarantee   Each cut has the least total price of all choices of kept storages (exact). An op that must
            not run twice never does; a random op runs again only as its replay, whose mask is kept.
Complexity  One maximum flow per round on O(n + m) vertices and edges; about 1 ms for 1,000 ops
Gaps        The prices are only moved, never proved; a value that is made again is made once (and kept
            to its last reader) or anew for every reader, whichever fits better, never a mix.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from msgspec.structs import replace

from tightrope.core import (
    Bytes,
    Graph,
    Limits,
    Machine,
    OpId,
    Phase,
    Schedule,
    StepIndex,
    StorageId,
    TightropeError,
)
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand, useful
from tightrope_planners.peers.mincut_prices import Prices, measured_prices
from tightrope_planners.peers.recovery import recovery
from tightrope_planners.solvers.mincut import INFINITE, min_cut

_UNITS = 2**40
"""Capacities are integers: the most expensive sum of prices is this many units."""
_SOURCE, _SINK = 0, 1
_TARGETS = (1.0, 0.85, 0.7, 0.5)
"""Shares of the limit that prices are moved towards, until something fits the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MincutKnobs:
    """Knobs of the planner.

    Attributes:
        rounds: cuts at most, per walk.
        step: how fast prices follow the excess, 0 < step.
        timed: whether a first walk has prices on time points; the other has one price for all of them.
        anew: whether values may be made again for every reader, instead of once.
    """

    rounds: int = 60
    step: float = 0.5
    timed: bool = True
    anew: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """One cheapest choice.

    Attributes:
        kept: forward storages that are held for the backward, beside those that stay anyway.
        again: forward ops that run again in the backward.
        price: of both, in the unit of the prices.
    """

    kept: frozenset[StorageId]
    again: frozenset[OpId]
    price: float


def mincut(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Plan by minimum cuts with measured prices; the base schedule where it fits.

    Raises:
        TightropeError: the graph has no backward.
    """
    del machine
    pairs = mincut_pairs(graph, live_limit(graph, limits), options=options)
    return expand(graph, useful(graph, pairs))


def backward_begin(graph: Graph) -> StepIndex:
    """Find the first op of the backward.

    Raises:
        TightropeError: there is none.
    """
    begin = next((op.id for op in graph.ops if op.phase is Phase.BACKWARD), len(graph.ops))
    begin = min((begin, *graph.boundaries[:1]))
    if not 0 < begin < len(graph.ops):
        raise TightropeError(
            'a minimum cut needs a graph with a forward and a backward part; use planner="auto" for others.'
        )
    return begin


def cheapest_cut(
    model: Model, begin: StepIndex, prices: Prices, bytes_price: Sequence[float], *, native: bool = True
) -> Cut:
    """Find the cheapest choice of what to keep and what to run again.

    Args:
        model: of the graph.
        begin: first op of the backward.
        prices: of keeping a storage and of running an op again.
        bytes_price: added to the price of keeping, per storage.
        native: whether C++ may be used.

    Returns:
        A choice from which everything that the backward reads is there or can be made again.
    """
    network = _CutNetwork(model, begin, prices, bytes_price)
    capacity, side = min_cut(network.num_vertices, network.edges, source=_SOURCE, sink=_SINK, native=native)
    assert capacity < INFINITE
    kept = frozenset(
        s
        for s, (into, out) in network.storages.items()
        if side[into] and not side[out] and not model.pinned[s]
    )
    again = frozenset(op for op, vertex in network.ops.items() if not side[vertex])
    price = sum(prices.keep[s] + bytes_price[s] for s in kept) + sum(prices.again[op] for op in again)
    return Cut(kept, again, price)


class _CutNetwork:
    """Vertices and edges of one cut."""

    def __init__(self, model: Model, begin: StepIndex, prices: Prices, bytes_price: Sequence[float]) -> None:
        returns = recovery(model).returns
        keep = [prices.keep[s] + bytes_price[s] for s in range(len(model.producer))]
        scale = _UNITS / max(sum(keep) + sum(prices.again), 1e-30)
        self.ops = {op: 2 + op for op in range(begin)}
        made = [s for s, producer in enumerate(model.producer) if 0 <= producer < begin]
        first = 2 + begin
        self.storages = {s: (first + 2 * i, first + 2 * i + 1) for i, s in enumerate(made)}
        self.num_vertices = first + 2 * len(made)
        self.edges: list[tuple[int, int, int]] = []
        for op, vertex in self.ops.items():
            self.edges.append((_SOURCE, vertex, round(prices.again[op] * scale)))
            for s in model.again_reads[op]:
                self.edges.append((self.storages[s][1], vertex, INFINITE))
        for s, (into, out) in self.storages.items():
            free = model.pinned[s]
            self.edges.append((into, out, 0 if free else round(keep[s] * scale)))
            if free or not returns[s]:
                self.edges.append((_SOURCE, into, INFINITE))
            else:
                self.edges.append((self.ops[model.producer[s]], into, INFINITE))
        needed = {s for op in range(begin, len(model.need)) for s in model.reads[op]}
        for s in sorted(needed.intersection(self.storages)):
            self.edges.append((self.storages[s][1], _SINK, INFINITE))


def pairs_of_cut(model: Model, begin: StepIndex, cut: Cut, *, anew: bool = False) -> tuple[Pair, ...]:
    """Turn a cut into re-runs, each right before the first op of the backward that needs it.

    Args:
        model: of the graph.
        begin: first op of the backward.
        cut: of the same model.
        anew: make a value again for every reader, instead of keeping it from the first to the last.
    """
    there = set(cut.kept) | {s for s, pinned in enumerate(model.pinned) if pinned}
    pairs: list[Pair] = []
    for stage in range(begin, len(model.need)):
        now = set(there)
        for op in sorted(_missing(model, begin, model.reads[stage], now)):
            pairs.append((stage, op))
        if not anew:
            there = now
    return tuple(pairs)


def _missing(model: Model, begin: StepIndex, wanted: Iterable[StorageId], there: set[StorageId]) -> set[OpId]:
    """Find the forward ops that bring ``wanted``; what they make is added to ``there``."""
    ops: set[OpId] = set()
    stack = list(wanted)
    while stack:
        storage = stack.pop()
        op = model.producer[storage]
        if storage in there or not 0 <= op < begin:
            continue
        ops.add(op)
        there.update(model.again_creates[op])
        stack.extend(model.again_reads[op])
    return ops


@dataclass(frozen=True, slots=True)
class Partition:
    """The best cut found, its re-runs, and what they take.

    Attributes:
        cut: what is kept and what runs again.
        pairs: the re-runs.
        peak: live bytes of the plan.
    """

    cut: Cut
    pairs: tuple[Pair, ...]
    peak: Bytes


def mincut_pairs(
    graph: Graph,
    limit: Bytes,
    *,
    prices: Prices | None = None,
    knobs: MincutKnobs | None = None,
    options: Options | None = None,
) -> tuple[Pair, ...]:
    """List the re-runs of the best partition; see `partition`."""
    return partition(graph, limit, prices=prices, knobs=knobs, options=options).pairs


def partition(
    graph: Graph,
    limit: Bytes,
    *,
    prices: Prices | None = None,
    knobs: MincutKnobs | None = None,
    options: Options | None = None,
    inlined: Set[StorageId] = frozenset(),
) -> Partition:
    """Move the prices of bytes until the plan of the cheapest cut fits.

    Args:
        graph: with a forward and a backward.
        limit: live bytes that the ops may hold.
        prices: of keeping and of re-runs, None = the measured times of the graph.
        knobs: of the rounds.
        options: whether C++ may be used, and the clock.
        inlined: storages that take no bytes unless they are kept, because a compiler fuses them away.

    Returns:
        The cheapest found that fits, by the graph's times; else the one with the smallest peak.

    Raises:
        TightropeError: the graph has no backward.
    """
    knobs, options = knobs or MincutKnobs(), options or Options()
    model = build(graph)
    search = _Prices(graph, model, limit, prices or measured_prices(graph), knobs, options, inlined)
    for share in _TARGETS:
        for timed in (True, False) if knobs.timed else (False,):
            search.begin_walk(int(limit * share))
            for _ in range(knobs.rounds):
                if not search.round(timed=timed) or options.watch.over:
                    break
        if search.fits:
            break
    return search.best


class _Prices:
    """The walk over prices: what each op of the step charges per byte that idles through it."""

    def __init__(
        self,
        graph: Graph,
        model: Model,
        limit: Bytes,
        prices: Prices,
        knobs: MincutKnobs,
        options: Options,
        inlined: Set[StorageId],
    ) -> None:
        self.graph, self.model, self.begin, self.limit = graph, model, backward_begin(graph), limit
        self.prices, self.knobs, self.options, self.inlined = prices, knobs, options, inlined
        self.points = [0.0] * len(model.need)
        self.idle = _idle(model, self.begin)
        total = sum(model.size[s] * (b - a) for s, (a, b) in self.idle.items())
        self.unit = sum(prices.again[: self.begin]) / max(total, 1)
        self.rank: tuple[float, float, float] | None = None
        self.target = limit
        made = (s for s, op in enumerate(model.producer) if 0 <= op < self.begin and not model.pinned[s])
        self.best = Partition(Cut(frozenset(made), frozenset(), 0.0), (), 0)
        if not inlined:
            self.consider(self.best.cut, (), model)

    @property
    def fits(self) -> bool:
        """Whether the best plan so far fits the limit."""
        return self.rank is not None and self.rank[0] == 0

    def begin_walk(self, target: Bytes) -> None:
        """Forget the prices; move the next ones towards ``target`` bytes."""
        self.target, self.points = target, [0.0] * len(self.model.need)

    def round(self, *, timed: bool) -> bool:
        """Cut, simulate, move the prices; return whether to go on."""
        below = [0.0]
        for price in self.points:
            below.append(below[-1] + price)
        held = [0.0] * len(self.model.producer)
        for storage, (after, before) in self.idle.items():
            held[storage] = self.model.size[storage] * (below[before] - below[after])
        cut = cheapest_cut(self.model, self.begin, self.prices, held)
        ways = (False, True) if self.knobs.anew else (False,)
        pairs = [pairs_of_cut(self.model, self.begin, cut, anew=anew) for anew in ways]
        model = self.model
        if self.inlined:
            model = build(_without_bytes(self.graph, self.inlined - cut.kept))
        fits = [self.consider(cut, chosen, model) for chosen in pairs]
        if not any(self.points) and any(fits):
            return False
        self._move(stage_bytes(model, pairs[0]), timed=timed)
        return True

    def consider(self, cut: Cut, pairs: tuple[Pair, ...], model: Model) -> bool:
        solver = open_solver(model)
        solver.load(pairs)
        state = solver.state(self.limit)
        over = max(0, state.peak - self.limit)
        rank = (float(over), float(state.ns), float(state.peak))
        if self.rank is None or rank < self.rank:
            self.rank, self.best = rank, Partition(cut, pairs, state.peak)
        return over == 0

    def _move(self, profile: Sequence[Bytes], *, timed: bool) -> None:
        """Raise prices where the plan is over the limit, lower them where it is below."""
        worst = max(profile)
        for stage, held in enumerate(profile):
            over = (held if timed else worst) / max(self.target, 1) - 1
            if over > 0:
                self.points[stage] += self.knobs.step * self.unit * (0.2 + min(over, 2.0))
            else:
                self.points[stage] *= max(0.7, 1 + self.knobs.step * over)


def _without_bytes(graph: Graph, storages: Set[StorageId]) -> Graph:
    return replace(
        graph, storages=tuple(replace(s, bytes=0) if s.id in storages else s for s in graph.storages)
    )


def _idle(model: Model, begin: StepIndex) -> dict[StorageId, tuple[StepIndex, StepIndex]]:
    """Find, per forward storage that the backward reads, the ops [after, before) that it idles through."""
    last: dict[StorageId, StepIndex] = {}
    first: dict[StorageId, StepIndex] = {}
    for op, reads in enumerate(model.reads):
        for storage in reads:
            if model.producer[storage] < begin and not model.pinned[storage]:
                if op < begin:
                    last[storage] = op
                else:
                    first.setdefault(storage, op)
    found = {}
    for storage, producer in enumerate(model.producer):
        if 0 <= producer < begin and not model.pinned[storage]:
            after = last.get(storage, producer) + 1
            found[storage] = (after, max(after, first.get(storage, len(model.need))))
    return found


def stage_bytes(model: Model, pairs: Sequence[Pair]) -> list[Bytes]:
    """Measure the largest number of live bytes in every stage (its re-runs and its first run)."""
    again: dict[StepIndex, list[OpId]] = {}
    for stage, op in sorted(pairs):
        again.setdefault(stage, []).append(op)
    runs = [(t, op, op == t) for t in range(len(model.need)) for op in (*again.get(t, ()), t)]
    made: dict[StorageId, int] = {}
    spans: list[tuple[StorageId, int, int]] = []
    current: dict[StorageId, int] = {}
    creates: dict[OpId, list[StorageId]] = {}
    for storage, op in enumerate(model.producer):
        creates.setdefault(op, []).append(storage)
    for k, (_, op, first) in enumerate(runs):
        for storage in model.reads[op] if first else model.again_reads[op]:
            made[storage] = k
        for storage in creates.get(op, ()) if first else model.again_creates[op]:
            if storage in current:
                spans.append((storage, current[storage], made[storage]))
            current[storage] = made[storage] = k
    for storage, begin in current.items():
        spans.append((storage, begin, len(runs) if model.at_end[storage] else made[storage]))
    change = [0] * (len(runs) + 2)
    for storage, begin, end in spans:
        change[begin + 1] += model.size[storage]
        change[min(end, len(runs)) + 1] -= model.size[storage]
    highest = [0] * len(model.need)
    live = 0
    for k, (stage, op, first) in enumerate(runs):
        live += change[k]
        highest[stage] = max(highest[stage], live + (model.need[op] if first else model.again_need[op]))
    return highest
