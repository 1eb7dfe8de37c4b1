"""Ops between two layers: of a module that ends, of one that begins, or of the one around both.

    block.0 ( ... fc | a b | )  net | c |  block.1 ( | d e | norm ... )      a run of ops between fc and norm

Idea        All modules of a class end with the same ops and begin with the same ops. So what a class
            ends with is a prefix of every run that follows it, what it begins with a suffix of every run
            before it, and what a class without known layers makes is in every run around it. Ops that
            are none of these belong to the module around. Among the places that are left, the cheapest
            ones are taken (see `slots`), in the order in which they come.
Guarantee   An op whose module may be another one under this rule is in doubt.
Complexity  O(ops x places between two layers).
Gaps        A class whose modules do different things (by a setting, or by a length) makes its
            neighbours' ops look certain where one of them happens to do less.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tightrope.core import Doubt
from tightrope_trace.prior import SUMMED, has_program
from tightrope_trace.slots import IMPOSSIBLE, Slot, Tree
from tightrope_trace.vocabulary import GLUE, KNOWN, LIGHT, MADE, SUMS, is_activation, is_derived, is_light

_MOST: Final = 40
"""Places between two layers beyond which the path is taken as it is: most of a model was left out there."""
_NEVER: Final = 100_000
_EARLY, _UNBEGUN = 6, 60
GATHERS: Final = frozenset({"index", "index_select", "gather", "scatter", "scatter_add", "index_add"})
BEGINNINGS: Final = GATHERS | MADE | frozenset({"matmul", "mm", "bmm", "einsum"})
"""What a module of an unknown class often does first."""
LOSSES: Final = KNOWN["loss"].signature
LATE: Final = GLUE | SUMS | frozenset[str]().union(*(KNOWN[name].signature for name in LIGHT))
"""What may follow the sum that ends a residual branch."""
Side = Literal["ends", "begins", "around", "beside"]


class EdgeOps(NamedTuple):
    """Ops between two layers.

    Attributes:
        ops: their positions.
        slots: numbers of the slots between the layers that any of them may go to, in order.
        sides: which module each slot is of.
        settled: whether the path is to be taken as it is.
    """

    ops: range
    slots: list[int]
    sides: list[Side]
    settled: bool = False


class Edges:
    """Runs of a path, and what their classes have in common.

    Args:
        words: bare names of the ops.
        groups: one number per op; a forward does not reach from one group into the next.
        tree: of modules.
        slots: that the path goes through.
        path: slot of every op.
    """

    def __init__(
        self,
        words: Sequence[str],
        groups: Sequence[int],
        tree: Tree,
        slots: Sequence[Slot],
        path: Sequence[int],
    ) -> None:
        self.words, self.groups, self.tree, self.slots, self.path = words, groups, tree, slots, list(path)
        self.lent = [tree.lent(slot) for slot in slots]
        self.runs = list(self._runs())
        self._looks = set[int]()
        self.common: dict[tuple[Side, tuple[object, ...]], tuple[str, ...]] = {}
        self.inner: dict[tuple[Side, tuple[object, ...]], Counter[str]] = {}
        for run in self.runs:
            self._learn(run)

    def refined(self, costs: npt.NDArray[np.int64]) -> tuple[list[int], list[Doubt]]:
        """Move ops to the cheapest places that are possible for them.

        Args:
            costs: by op and slot, without what sums cost more.

        Returns:
            A slot and a doubt per op.
        """
        doubts = [Doubt.NONE] * len(self.words)
        for run in self.runs:
            if not run.ops:
                continue
            possible = [
                [
                    costs[op, slot] < IMPOSSIBLE and self._may(run, op, place)
                    for place, slot in enumerate(run.slots)
                ]
                for op in run.ops
            ]
            idle = any(
                side == "beside"
                and self.slots[slot].place == "leaf"
                and not any(row[place] for row in possible)
                for place, (slot, side) in enumerate(zip(run.slots, run.sides, strict=True))
            )
            if not run.settled and not idle and run.slots:
                self._place(run, possible, costs)
            for op, row in zip(run.ops, possible, strict=True):
                modules = {self.slots[slot].module for slot, may in zip(run.slots, row, strict=True) if may}
                several = len(modules | {self.slots[self.path[op]].module}) > 1
                if run.settled or idle or (several and not self._ends_layer(run, op)):
                    doubts[op] = Doubt.PLACE
        return self.path, doubts

    def is_layer(self, op: int) -> bool:
        """Whether an op is one that its slot's layer, or a lent one, is known to make."""
        slot = self.slots[self.path[op]]
        if slot.place == "gap":
            return self.words[op] in self.lent[self.path[op]]
        words = self.tree.words[slot.module]
        return words is not None and (
            self.words[op] in words.signature or not is_derived(self.tree.modules[slot.module].kind)
        )

    def _runs(self) -> Iterator[EdgeOps]:
        bounds: list[int] = []
        for op in range(len(self.words)):
            if op and self.groups[op] != self.groups[op - 1]:
                yield from self._between(bounds, op)
                bounds = []
            if not bounds:
                bounds = [op - 1]
            if self.is_layer(op):
                bounds.append(op)
        yield from self._between(bounds, len(self.words))

    def _between(self, bounds: list[int], end: int) -> Iterator[EdgeOps]:
        """Runs between the layers of one group; the first bound stands before it."""
        if bounds:
            for place, (one, other) in enumerate(pairwise([*bounds, end])):
                yield self._run(one, other, first=place == 0, last=other == end)

    def _run(self, one: int, other: int, *, first: bool, last: bool) -> EdgeOps:
        slots, ops = self.slots, range(one + 1, other)
        start = 0 if first else self.path[one] + (slots[self.path[one]].place != "gap")
        stop = len(slots) if last else self.path[other] + (slots[self.path[other]].place == "gap")
        if start > stop or (not first and not last and self.path[other] < self.path[one]):
            same = {slots[self.path[op]].module for op in ops}
            around = {self._caller(one), self._caller(other)}
            light = is_light(self._kind(one)) or is_light(self._kind(other))
            return EdgeOps(ops, [], [], settled=not (light and same <= around and len(around) == 1))
        between = [k for k in range(start, stop) if self._free(slots[k])]
        if len(between) > _MOST:
            return EdgeOps(ops, [], [], settled=True)
        before = {0} if first else self._open(one)
        after = {0} if last else self._open(other)
        return EdgeOps(ops, between, [self._side(slots[k].module, before, after) for k in between])

    def _free(self, slot: Slot) -> bool:
        if slot.place != "leaf":
            return slot.place == "gap"
        return self.tree.words[slot.module] is None or is_derived(self.tree.modules[slot.module].kind)

    def _kind(self, op: int) -> str:
        slot = self.path[op]
        return self.tree.modules[self.lent[slot].get(self.words[op], self.slots[slot].module)].kind

    def _caller(self, op: int) -> int:
        """The module around the layer that made an op."""
        slot = self.slots[self.path[op]]
        return slot.module if slot.place == "gap" else slot.family

    def _open(self, op: int) -> set[int]:
        """Modules that are running when a layer does."""
        module, found = self._caller(op), {0}
        while module:
            found.add(module)
            module = self.tree.callers[module]
        return found

    @staticmethod
    def _side(module: int, before: set[int], after: set[int]) -> Side:
        if module in before:
            return "around" if module in after else "ends"
        return "begins" if module in after else "beside"

    def _learn(self, run: EdgeOps) -> None:
        """Keep what a class makes in every run: in a row at its edge, or behind what a module in it makes."""
        names = tuple(self.words[op] for op in run.ops)
        for place, side in enumerate(run.sides):
            key = side, self.tree.key(self.slots[run.slots[place]])
            if self._at_edge(run, place):
                known = self.common.get(key, names)
                self.common[key] = _shared(known, names, at_end=side == "begins")
            elif side != "around":
                held = Counter(names)
                self.inner[key] = self.inner[key] & held if key in self.inner else held

    @staticmethod
    def _at_edge(run: EdgeOps, place: int) -> bool:
        """Whether nothing can stand between a layer and what a class makes beside it."""
        last = len(run.slots) - 1
        return (run.sides[place] == "ends" and place == 0) or (run.sides[place] == "begins" and place == last)

    def _may(self, run: EdgeOps, op: int, place: int) -> bool:
        """Whether an op may be one of a place."""
        side, word = run.sides[place], self.words[op]
        if side == "around":
            return True
        key = side, self.tree.key(self.slots[run.slots[place]])
        if word not in self.inner.get(key, {word: 1}):
            return False
        reach = self.common.get(key)
        if reach is None:
            return True
        if not self._at_edge(run, place):
            return word in reach
        return op - run.ops.start < len(reach) if side == "ends" else run.ops.stop - 1 - op < len(reach)

    def _place(self, run: EdgeOps, possible: list[list[bool]], costs: npt.NDArray[np.int64]) -> None:
        """Find the cheapest places, in order."""
        total = np.zeros(len(run.slots), dtype=np.int64)
        steps: list[npt.NDArray[np.int64]] = []
        for op, row in zip(run.ops, possible, strict=True):
            best = np.minimum.accumulate(total)
            came = np.maximum.accumulate(np.where(total == best, np.arange(len(total)), 0))
            steps.append(came)
            total = best + costs[op, run.slots] + np.where(row, 0, _NEVER) + self._sums(run, op)
            total += self._starts(run, op)
        at = int(np.argmin(total))
        for op, came in zip(reversed(run.ops), reversed(steps), strict=True):
            self.path[op] = run.slots[at]
            at = int(came[at])
        self._look(run)

    def _sums(self, run: EdgeOps, op: int) -> npt.NDArray[np.int64]:
        """What a sum costs more in each place, where it ends a residual branch."""
        modules = [self.slots[slot].module for slot in run.slots]
        ends = self.words[op] in SUMS and LATE.issuperset(self.words[op + 1 : run.ops.stop])
        return np.array([self.tree.residual(module) if ends else 0 for module in modules], dtype=np.int64)

    def _starts(self, run: EdgeOps, op: int) -> npt.NDArray[np.int64]:
        """What an op costs more in a module that has not begun: they begin with layers, gathers and views."""
        word = self.words[op]
        if word in GLUE | GATHERS | SUMS | LATE:
            return np.zeros(len(run.slots), dtype=np.int64)
        begun = not BEGINNINGS.isdisjoint(self.words[run.ops.start : op + 1])
        costs = {"begins": _EARLY, "beside": 0 if begun else _UNBEGUN}
        early = [
            0 if self._acts(slot) else costs.get(side, 0)
            for side, slot in zip(run.sides, run.slots, strict=True)
        ]
        return np.array(early, dtype=np.int64)

    def _acts(self, slot: int) -> bool:
        """Whether a slot is of an activation of an unknown class, which begins as it likes."""
        one = self.slots[slot]
        return one.place == "leaf" and is_activation(self.tree.modules[one.module].kind)

    def _ends_layer(self, run: EdgeOps, op: int) -> bool:
        """Whether an op is the sum by which a layer of torch ends that normalizes first."""
        slot = self.slots[self.path[op]]
        kind, first = self.tree.modules[slot.module].kind, op == run.ops.start
        last = slot.place == "gap" and slot.number == len(self.tree.children[slot.module])
        known = kind in SUMMED and has_program(*self.tree.shape(slot.module))
        return first and last and known and self.words[op] == "add"

    def _look(self, run: EdgeOps) -> None:
        """A loss looks at the output before it computes anything: that belongs to the module of the loss."""
        for op in reversed(run.ops):
            following = op + 1
            if following < run.ops.stop and self.words[op] in GLUE:
                loss = self.words[following] in LOSSES or following in self._looks
                if loss and self.path[op] < self.path[following]:
                    self._looks.add(op)
                    self.path[op] = self.path[following]


def _shared(one: tuple[str, ...], other: tuple[str, ...], *, at_end: bool) -> tuple[str, ...]:
    """The longest beginning, or end, of two sequences.

    Example:
        >>> _shared(("a", "b"), ("c", "b"), at_end=True), _shared(("a", "b"), ("c", "b"), at_end=False)
        (('b',), ())
    """
    pairs = zip(reversed(one), reversed(other), strict=False) if at_end else zip(one, other, strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return one[len(one) - length :] if at_end else one[:length]
