"""Which ops to run again instead of paging what they made, for the least energy or time.

Idea        Begin without re-runs. Every page-in is a question: make it again there, alone or with what its op
            reads and is not there? Let others leave before it? So is every late read of what was kept:
            without it there is room for others. Ask all, from the dearest on, and keep what lowers the cost
            of the whole walk, whose pages follow from the answers. When no question helps, take some answers
            back at random and go on. Begin from both rules of what leaves (`residency`).
Source      POET (ICML 2022) for the problem, weights and optimizer state among what is paged here
Guarantee   Never dearer than the walk without re-runs; every set is allowed by `Model.allowed`.
Complexity  walks x runs; a walk of 300 runs takes about 1.5 ms.
Gaps        A local search: no bound comes with it. The planner ``poet`` proves one on small graphs.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeAlias

from tightrope.core import Bytes, Graph, Machine, Nanoseconds, StepIndex, StorageId, TightropeError
from tightrope.plan.model import Model, Pair, build
from tightrope_micro.paging.residency import At, CopyPrices, Residency, TooLargeError, WalkChoice

Objective: TypeAlias = Literal["seconds", "joules"]
_DEPTH: Final = 6
"""Ops in a chain that one question may make again."""
_SOONER: Final = (1, 2)
"""Ops before a read at which what it reads is made again."""
_ROUNDING: Final = 1e-9
"""Share by which two sums of the same figures may differ."""
Cost: TypeAlias = tuple[float, float, float]
_Asked: TypeAlias = tuple[Cost, tuple[At, ...]]
_Change: TypeAlias = tuple[frozenset[Pair], frozenset[At]]
_INFINITE: Final = (inf, inf, inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Economy:
    """What re-runs are chosen for.

    Attributes:
        objective: what is minimised.
        seconds: largest time of a step, None = any.
        joules: largest energy of a step, None = any.
        reruns: whether ops may run again.
        pages: whether what ops make may be paged; what the caller holds always is. If not, it stays, or is
            made again where ``reruns`` allows that.
        walks: that may be tried.
        seed: of what is taken back.

    Raises:
        TightropeError: a limit that is not above 0, or not finite.
    """

    objective: Objective = "seconds"
    seconds: float | None = None
    joules: float | None = None
    reruns: bool = True
    pages: bool = True
    walks: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("joules", self.joules)):
            if value is not None and not 0 < value < inf:
                raise TightropeError(f"{name} {value:g} is no limit: it has to be above 0, and finite.")

    def cost(self, ns: Nanoseconds, joules: float) -> Cost:
        """Rank a step: by which share it exceeds its limits, the objective, and the other figure."""
        over = _over(ns / 1e9, self.seconds) + _over(joules, self.joules)
        return (over, joules, float(ns)) if self.objective == "joules" else (over, float(ns), joules)


def _over(figure: float, limit: float | None) -> float:
    """By which share a figure exceeds a limit, rounding of sums aside."""
    share = 0.0 if limit is None else figure / limit - 1
    return share if share > _ROUNDING else 0.0


def cheapest(
    graph: Graph, machine: Machine, limit: Bytes, economy: Economy, start: WalkChoice | None = None
) -> WalkChoice:
    """Choose what runs again, and what leaves, in a step whose storages are all paged as needed.

    Args:
        graph: one training step, in one part, fitted to the machine's alignment.
        machine: with a slower tier.
        limit: on live bytes, which the walk without re-runs keeps.
        economy: objective, limits and effort.
        start: to begin from.
    """
    search = _Search(graph, machine, limit, economy)
    begins = list(dict.fromkeys((start or WalkChoice(), WalkChoice(), WalkChoice(by_price=True))))
    found = [_anneal(search, begin, (k + 1) / len(begins)) for k, begin in enumerate(begins)]
    return min(found, key=search.cost)


def _anneal(search: "_Search", start: WalkChoice, share: float) -> WalkChoice:
    """Descend from a start; then change some answers at random, and descend again, for a share of walks."""
    best = current = search.descend(start, share)
    draw = random.Random(search.economy.seed)
    for _ in range(search.most):  # walks that are known already are not counted
        if search.walks >= share * search.most:
            break
        begin = current
        for _ in range(1 + draw.randrange(4)):
            changes = list(draw.choice((search.reruns, search.holds, search.sooner))(begin))
            if changes:
                begin = begin.changed(*draw.choice(changes))
        found = search.descend(begin, share)
        if search.cost(found) <= search.cost(current):
            current = found
        best = min(best, current, key=search.cost)
    return best


class _Search:
    """Walks of one graph under one limit, counted, and their costs remembered.

    Attributes:
        walks: that were tried.
        most: that may be.
    """

    def __init__(self, graph: Graph, machine: Machine, limit: Bytes, economy: Economy) -> None:
        self.graph, self.limit, self.economy = graph, limit, economy
        self.model: Model = build(graph)
        self.prices = CopyPrices.of(graph, machine)
        self.walks, self.most = 0, economy.walks
        self.late = _late_reads(self.model)
        self._known: dict[WalkChoice, _Asked] = {}

    def cost(self, choice: WalkChoice) -> Cost:
        """Sum what limits are exceeded by, and the objective; infinite where the walk does not fit."""
        return self._walk(choice)[0]

    def descend(self, choice: WalkChoice, share: float) -> WalkChoice:
        """Ask about every page-in, and about every answer, until nothing lowers the cost."""
        cost, again = self.cost(choice), True
        while again:
            again = False
            for changes in (self.reruns, self.holds, self.sooner):  # each when those before lower nothing
                for pairs, held in changes(choice):
                    if self.walks >= share * self.most:
                        return choice
                    changed = choice.changed(pairs, held)
                    found = self.cost(changed)
                    if found < cost:
                        choice, cost, again = changed, found, True
                if again:
                    break
        return choice

    def _ins(self, choice: WalkChoice) -> list[At]:
        return sorted(set(self._walk(choice)[1]), key=lambda at: (-self._price(at[1]), at))

    def reruns(self, choice: WalkChoice) -> Iterator[_Change]:
        """Make a storage again where it is read, or do not."""
        yield from self._chains(choice, (0,))
        for pair in sorted(choice.pairs):
            yield frozenset((pair,)), frozenset()

    def sooner(self, choice: WalkChoice) -> Iterator[_Change]:
        """Make a storage again some ops before it is read, where those leave more room."""
        yield from self._chains(choice, _SOONER)

    def holds(self, choice: WalkChoice) -> Iterator[_Change]:
        """Let others leave before a storage, or do not."""
        for at in (*self._ins(choice), *sorted(choice.held)):
            yield frozenset(), frozenset((at,))

    def _price(self, storage: StorageId) -> float:
        prices = self.prices
        return (prices.in_joules if self.economy.objective == "joules" else prices.in_ns)[storage]

    def _chains(self, choice: WalkChoice, ahead: tuple[int, ...]) -> Iterator[_Change]:
        """Re-runs in place of every page-in, then of what is kept; chains of one op and more."""
        if not self.economy.reruns:
            return
        pages = [(run.stage, storage) for run, storage in self._ins(choice)]
        kept = set(self.late).difference(pages)  # to make again what is kept makes room for others
        for stage, storage in (*pages, *sorted(kept, key=lambda page: (-self.model.size[page[1]], page))):
            for early in ahead:
                for chain in self._chain(stage - early, storage):
                    if not chain <= choice.pairs:
                        yield chain - choice.pairs, frozenset()

    def _chain(self, stage: StepIndex, storage: StorageId) -> Iterator[frozenset[Pair]]:
        """Make a storage again before the first run of an op: it alone, and with what that reads."""
        chain: set[Pair] = set()
        wanted = [storage]
        while wanted and len(chain) < _DEPTH:
            op = self.model.producer[wanted.pop()]
            pair = (stage, op)
            if op < 0 or pair in chain or not self.model.allowed(pair):
                break
            chain.add(pair)
            yield frozenset(chain)
            wanted += sorted(self.model.again_reads[op], key=lambda s: self.model.size[s])

    def _walk(self, choice: WalkChoice) -> _Asked:
        if choice not in self._known:
            self.walks += 1
            self._known[choice] = self._walked(choice)
        return self._known[choice]

    def _walked(self, choice: WalkChoice) -> _Asked:
        try:
            walk = Residency(self.graph, choice, self.limit, self.prices).walk()
        except TooLargeError:
            return _INFINITE, ()
        ns, joules = walk.cost(self.prices)
        over, *rest = self.economy.cost(ns, joules)
        if not self.economy.pages:
            over += sum(not self.graph.storages[storage].home for _, storage in walk.ins)
        return (over, rest[0], rest[1]), tuple(walk.ins)


def _late_reads(model: Model) -> tuple[tuple[StepIndex, StorageId], ...]:
    """List reads of what an op made, where other ops ran since it was made or read."""
    touched: dict[StorageId, StepIndex] = {}
    found: list[tuple[StepIndex, StorageId]] = []
    for stage, reads in enumerate(model.reads):
        for storage in reads:
            if touched.get(storage, model.producer[storage]) < stage - 1:
                found.append((stage, storage))
            touched[storage] = stage
    return tuple(found)
