"""Gap-cover lower bound on the time that recomputation adds.

Idea        Every storage that is absent between two uses costs a re-run of its producer, and at every op
            enough bytes must be absent. The linear relaxation of that covering problem, with rounded
            rows, is a bound; splitting on gaps (kept or absent) raises it until the case distinction is
            as expensive as the plan in hand, or as large as allowed.
Source      weak duality; mixed-integer rounding; best-first branch and bound
Guarantee   The value is evaluated on integers from the multipliers alone, so the solver's rounding
            cannot make it too high. No schedule within the budget that recomputes and does not page
            adds less time, in base order or, with a free order, in any order.
Complexity  one linear program of as many columns as gaps per case; the effort is counted in work, so
            equal calls give equal bounds.
Gaps        The cover does not charge re-runs for what they need themselves. An installed bound that does is
            tried first; the better of the two is returned.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from tightrope.core import Bytes, Case, Cover, Graph, Nanoseconds, Split, Stages
from tightrope.core.plugins import installed, loaded
from tightrope.plan.bound.problem import MAX_FREE_OPS, problem
from tightrope.plan.bound.relaxation import Relaxation, RowKey, Solution

_Case = TypeVar("_Case")


def preorder(root: _Case, children: Callable[[_Case], Sequence[_Case]]) -> list[_Case]:
    """List a case and all below it, each before its children, children in order."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(reversed(children(node)))
    return found


_WORK: Final = (15_000, 40_000)
"""Most units of work (about 20 us) on graphs of up to 400 ops, and on larger ones."""
_SMALL_OPS: Final = 400
_PROGRAM_OPS: Final = 10_000
"""Of a graph of more ops, one row is solved without a search for more."""
_WORTH: Final = 1.001
_SCALE_BITS: Final = 52
_WEIGHT_BITS: Final = 61


@dataclass(frozen=True, slots=True)
class TimeBound:
    """A lower bound on added time.

    Attributes:
        extra_ns: time beyond running every op once.
        cover, stages: the numbers behind it, one of the two; none when it is 0.
    """

    extra_ns: Nanoseconds
    cover: Cover | None = None
    stages: Stages | None = None


@cache
def further(name: str) -> Any:
    """Load a bound that another distribution adds, an entry point of the group ``tightrope.bounds``; or None.

    ``stages(graph, relaxation, solution, upper=, effort=)`` begins from a solved cover; effort 0 is one
    linear program. ``close(graph, budget=, upper_ns=)`` goes on from a plan. Both return a `TimeBound`, or
    None where they have nothing to say.
    """
    entries = installed("tightrope.bounds").get(name, ())
    return loaded(f"the bound {name!r}", entries) if entries else None


@dataclass(slots=True)
class _Node:
    fixed: dict[int, bool]
    solution: Solution
    split: int = -1
    children: tuple["_Node", ...] = ()


def time_bound(
    graph: Graph,
    *,
    budget: Bytes,
    free_order: bool = False,
    upper_ns: Nanoseconds | None = None,
    nodes: int | None = None,
    stages: bool = True,
    effort: int = 1,
) -> TimeBound:
    """Bound from below the time that every schedule within a budget adds.

    Args:
        graph: one training step, in base order.
        budget: total bytes, what the caller holds included. Where no schedule fits, the bound is 0.
        free_order: bound every order of first runs instead of the base order; graphs of more than
            `MAX_FREE_OPS` ops then get 0.
        upper_ns: added time of a known schedule; the search for a better bound ends there.
        nodes: most linear programs after the first; None = a fixed amount of work, by size. 0 = none at all
            for graphs of more than 10,000 ops: one row of the problem is solved.
        stages: whether to try the staged bound, which charges re-runs for what they read, if it is installed.
        effort: factor on the amount of work.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> ops = (Op(0, "a", "a", (), (0,), ns=5), Op(1, "b", "b", (), (1,)), Op(2, "c", "c", (0,), (2,)))
        >>> chain = Graph(ops, (Storage(0, 64), Storage(1, 128), Storage(2, 64)))
        >>> time_bound(chain, budget=128).extra_ns
        5
    """
    if free_order and len(graph.ops) > MAX_FREE_OPS:
        return TimeBound(0)
    relaxation = Relaxation(problem(graph, free_order=free_order), budget)
    over, lost = (relaxation.short > 0).any(), (relaxation.problem.fixed > budget).any()
    if upper_ns == 0 or not over or lost:
        return TimeBound(0)
    upper = math.inf if upper_ns is None else upper_ns
    if len(graph.ops) > _PROGRAM_OPS and nodes == 0:
        return _CoverSearch(relaxation, upper, relaxation.one_row()).result()
    search = _CoverSearch(relaxation, upper, relaxation.solve({}, ()))
    staged: TimeBound | None = None
    if stages and not free_order and (bound := further("stages")) is not None:
        allowed = effort if nodes is None else 0
        staged = bound(graph, relaxation, search.root.solution, upper=upper, effort=allowed)
    if staged is not None and staged.extra_ns >= min(upper, search.root.solution.value * _WORTH):
        return staged
    search.run(nodes, relaxation.work + effort * _WORK[len(graph.ops) > _SMALL_OPS])
    return max(search.result(), staged or TimeBound(0), key=lambda found: found.extra_ns)


class _CoverSearch:
    """Best-first branch and bound."""

    def __init__(self, relaxation: Relaxation, upper: float, root: Solution) -> None:
        self.relaxation, self.problem, self.upper = relaxation, relaxation.problem, upper
        self.root = _Node({}, root)

    def run(self, nodes: int | None, work: int) -> None:
        """Split the cheapest case, until it is expensive enough or the effort is spent."""
        heap = [(self.root.solution.value, 0, self.root)]
        count = 0
        while heap and (self.relaxation.work < work if nodes is None else count < nodes):
            value, _, node = heapq.heappop(heap)
            gap = self._branch(node)
            if self._rounded(value) >= self.upper or gap < 0:
                break
            node.split, node.children = gap, (self._child(node, gap, False), self._child(node, gap, True))
            for child in node.children:
                count += 1
                heapq.heappush(heap, (max(value, child.solution.value), count, child))

    def _child(self, node: _Node, gap: int, absent: bool) -> _Node:
        fixed = {**node.fixed, gap: absent}
        return _Node(fixed, self.relaxation.solve(fixed, tuple(node.solution.weights)))

    def _rounded(self, value: float) -> float:
        """Round up to the next time that a schedule can add."""
        unit = self.problem.unit
        return value if math.isinf(value) else math.ceil((value - 1e-6 * abs(value) - 1e-3) / unit) * unit

    def _branch(self, node: _Node) -> int:
        """Choose the gap that is most undecided, weighted by its bytes; -1 = none."""
        part = np.minimum(node.solution.absent, 1.0 - node.solution.absent)
        part[list(node.fixed)] = 0.0
        if not len(part) or math.isinf(node.solution.value) or part.max() < 1e-6:
            return -1
        return int(np.argmax(part * self.problem.size))

    def result(self) -> TimeBound:
        """Write the tree down and evaluate it exactly."""
        leaves = [node for node in preorder(self.root, lambda node: node.children) if not node.children]
        most = self._everything()
        numbers = [
            [*self._weights(leaf).values(), *(min(share, most) for share in leaf.solution.shares.values())]
            for leaf in leaves
        ]
        heaviest = max((number for row in numbers for number in row), default=1.0)
        bits = max(0, min(_SCALE_BITS, _WEIGHT_BITS - math.ceil(math.log2(max(heaviest, 1e-9)))))
        scale = 1 << bits
        tree: list[Split | Case] = []
        least: int | None = None
        for node in preorder(self.root, lambda node: node.children):
            if node.children:
                tree.append(Split(self._storage(node.split), self._until(node.split)))
                continue
            case, value = self._case(node, scale)
            tree.append(case)
            least = value if least is None else min(least, value)
        assert least is not None
        unit = self.problem.unit * scale
        extra = max(0, -(-least // unit)) * self.problem.unit
        return TimeBound(extra, Cover(self.relaxation.budget, scale, tuple(tree)) if extra else None)

    def _weights(self, node: _Node) -> Mapping[RowKey, float]:
        """Multipliers of a leaf; where a row cannot be filled, more than everything costs."""
        if not math.isinf(node.solution.value):
            return node.solution.weights
        return dict.fromkeys(node.solution.weights, 2.0 * len(self.problem.runs) * self._everything())

    def _everything(self) -> float:
        """More than all runs together cost, ns: a larger charge says nothing more."""
        return sum(sum(way.ns for way in ways) for ways in self.problem.runs.values()) + 1.0

    def _case(self, node: _Node, scale: int) -> tuple[Case, int]:
        weights = {key: int(weight * scale) for key, weight in self._weights(node).items()}
        weights = {key: weight for key, weight in weights.items() if weight}
        shares = self._shares(node.solution.shares, scale)
        value = self._value(node.fixed, weights, shares, scale)
        return Case(
            tuple((op, divisor, weight) for (op, divisor), weight in sorted(weights.items())),
            tuple((self._storage(gap), self._until(gap), share) for gap, share in sorted(shares.items())),
        ), value

    def _shares(self, found: Mapping[int, float], scale: int) -> dict[int, int]:
        """Round shares down so that no run is charged more than it costs."""
        most = self._everything()
        exact = {gap: int(min(share, most) * scale) for gap, share in found.items()}
        kept: dict[int, int] = {}
        for gap in (gap for gap, share in exact.items() if share):
            kept[gap] = exact[gap]
            kept[gap] -= min(kept[gap], max(0, self._overcharge(gap, kept, scale)))
        return {gap: share for gap, share in kept.items() if share}

    def _overcharge(self, gap: int, kept: Mapping[int, int], scale: int) -> int:
        """Find by how much the gaps that share a run with ``gap`` charge more than it costs."""
        p, worst = self.problem, 0
        mine = [other for other in kept if p.producer[other] == p.producer[gap]]
        for way in p.runs[int(p.producer[gap])]:
            if int(p.storage[gap]) not in way.creates:
                continue
            served = [other for other in mine if int(p.storage[other]) in way.creates]
            for cut in {int(p.since[other]) for other in served}:
                at = [g for g in served if p.since[g] <= cut and (p.inside is not None or cut < p.until[g])]
                if gap in at:
                    worst = max(worst, sum(kept[g] for g in at) - way.ns * scale)
        return worst

    def _value(
        self, fixed: Mapping[int, bool], weights: Mapping[RowKey, int], shares: Mapping[int, int], scale: int
    ) -> int:
        """Evaluate multipliers exactly, in multiples of 1 / scale ns."""
        short = self.relaxation.shortage(fixed)
        decided = np.zeros(self.problem.num_gaps, np.bool_)
        decided[list(fixed)] = True
        value, given = 0, dict[int, int]()
        for key, weight in weights.items():
            if short[key[0]] > 0:
                members, factors, least = self.relaxation.row(key, int(short[key[0]]), decided)
                value += weight * least
                for gap, factor in zip(members.tolist(), factors.tolist(), strict=True):
                    given[gap] = given.get(gap, 0) + weight * factor
        value += sum(min(0, self._charge(gap, shares, scale) - back) for gap, back in given.items())
        return value + sum(self._charge(gap, shares, scale) for gap, absent in fixed.items() if absent)

    def _charge(self, gap: int, shares: Mapping[int, int], scale: int) -> int:
        price = self.relaxation.lone.get(gap)
        return shares.get(gap, 0) if price is None else price * scale

    def _storage(self, gap: int) -> int:
        return int(self.problem.storage[gap])

    def _until(self, gap: int) -> int:
        return int(self.problem.until[gap])
