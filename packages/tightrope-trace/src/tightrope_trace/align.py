"""Which module ran which op, from names and order alone.

Idea        The ops of each forward are assigned to slots (see `slots`) by one global alignment
            (Viterbi): the cheapest path through the slots, where an op costs little in a slot that makes
            such ops and much elsewhere, leaving out a leaf costs, and jumping (a module that runs twice,
            or out of order) costs more. Children need not run in the order of their definition: the
            order of the children of a class is the one under which the cheapest path is cheapest (see
            `order`). Then an op that most modules of a class do not make at that place becomes expensive
            there, and the other way round. A child that runs again is lent to its parent. At last ops
            between two layers are given to the module that can have made them (see `edges`), and what
            may be otherwise is said to be in doubt (see `doubts`).
Source      Replaces the greedy cursor of Hotline (Snider, Chevalier, Pekhimenko, MLSys 2023).
Guarantee   Paths are the cheapest ones under these costs and orders. A match of 1 is only given where
            all modules are of classes of torch that call their children in a known order, and no op is
            in doubt.
Complexity  O(ops x slots) time and bytes for every order that is tried; see `order` for how many.
Gaps        Modules that make the same ops one after another, in an order other than that of their
            definition, are told apart by nothing. Modules that share weights keep their first path.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from tightrope.core import Doubt, Module
from tightrope_trace.doubts import complete, hidden, proved, settled, uneven
from tightrope_trace.edges import Edges
from tightrope_trace.match import UNPROVED, match_of
from tightrope_trace.order import find_order
from tightrope_trace.paths import Path, cheapest_path
from tightrope_trace.slots import Children, Costs, Slot, Tree, Usual
from tightrope_trace.vocabulary import MADE, plain

_BACK, _FAR = 50, 700
_LEARNED_FROM = 3000
"""Ops from which the order of children is learned: those of a few steps, where a profile has many."""


class Alignment(NamedTuple):
    """Where ops belong, and how well they go with the modules.

    Attributes:
        owners: one position in the module tree per op.
        match: between 0 and 1, see `tightrope_trace.match`; None where nothing tells.
        doubts: one per op: why its module may be another one.
    """

    owners: list[int]
    match: float | None
    doubts: list[Doubt]


def align(names: Sequence[str], modules: Sequence[Module], *, native: bool = True) -> list[int]:
    """Find the module of every op; see `aligned`.

    Example:
        >>> tree = [Module(""), Module("fc", "Linear", 0), Module("act", "ReLU", 0)]
        >>> align(["aten::linear", "aten::relu", "aten::sum"], tree)
        [1, 2, 0]
    """
    return aligned(names, modules, native=native).owners


def aligned(
    names: Sequence[str],
    modules: Sequence[Module],
    groups: Sequence[int] | None = None,
    *,
    native: bool = True,
) -> Alignment:
    """Find the module of every op, and say how well ops and modules go together.

    Args:
        names: of outermost ops of a forward pass, in the order in which they ran.
        modules: the module tree in order of definition, root first.
        groups: one number per op; a forward does not reach from one group into the next.
        native: whether C++ may be used.

    Example:
        >>> tree = [Module(""), Module("a", "Linear", 0), Module("b", "Linear", 0)]
        >>> found = aligned(["aten::linear"], tree)
        >>> found.owners, found.match, found.doubts[0].value
        ([1], 0.5, 'place')
    """
    words = [plain(name) for name in names]
    aligner = _Aligner(words, groups or [0] * len(words), Tree(modules, frozenset(words)), native=native)
    aligner.learn()
    return aligner.found()


def _parts(groups: Sequence[int]) -> list[range]:
    """Stretches of equal numbers.

    Example:
        >>> _parts([0, 0, 3])
        [range(0, 2), range(2, 3)]
    """
    found = list[range]()
    for _, members in groupby(range(len(groups)), key=groups.__getitem__):
        start = found[-1].stop if found else 0
        found.append(range(start, start + sum(1 for _ in members)))
    return found


class _Aligner:
    """Ops, slots and costs of one profile."""

    def __init__(self, words: list[str], groups: Sequence[int], tree: Tree, *, native: bool) -> None:
        self.tree, self.words, self.groups, self.native = tree, words, groups, native
        self.vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
        self.kinds = [self.vocabulary[word] for word in words]
        self.parts = _parts(groups)
        self.names = frozenset(self.vocabulary)
        self.costs = self.edge_costs = Costs(tree, list(self.vocabulary))
        self.children: Children = tree.children

    def learn(self) -> None:
        """Find the order of children, then what is usual where."""
        parts = self._different()
        words = [self.words[op] for part in parts for op in part]
        self.children = find_order(self.tree, words, lambda children: self._path(children, parts))
        slots, path = self._path(self.children, parts)
        usual = self._usual(slots, path.slots, words)
        self.costs = Costs(self.tree, list(self.vocabulary), usual)
        ranges = {key: counted for key, counted in usual.items() if key[0] == "Sequential"}
        self.edge_costs = Costs(self.tree, list(self.vocabulary), ranges, edges=True)

    def found(self) -> Alignment:
        """Name the module of every op."""
        slots, best = self._path(self.children, self.parts)
        if not self.kinds:
            return Alignment([], match_of([], self.tree, slots, []), [])
        edges = Edges(self.words, self.groups, self.tree, slots, best.slots)
        path, placed = edges.refined(self.edge_costs.tables(slots)[0][self.kinds])
        owners = [
            edges.lent[number].get(word, slots[number].module)
            for word, number in zip(self.words, path, strict=True)
        ]
        layers = [edges.is_layer(op) for op in range(len(path))]
        odd = uneven(self.words, self.groups, owners, layers, self.tree)
        odd = [one or other for one, other in zip(odd, hidden(owners, layers, self.tree), strict=True)]
        lent = [layer and slots[number].place == "gap" for layer, number in zip(layers, path, strict=True)]
        for part in self.parts:
            jumps = any(best.slots[op] < best.slots[op - 1] for op in part[1:])
            if jumps or any(lent[op] and self.words[op] in MADE for op in part):
                odd[part.start : part.stop] = [True] * len(part)  # not in the order that was found for all
        odd = [one or other for one, other in zip(odd, lent, strict=True)]
        runs = [run.ops for run in edges.runs]
        doubts = settled(owners, self.words, layers, placed, odd, runs, self.tree)
        match = match_of(self.words, self.tree, slots, path)
        sure = (
            proved(self.tree)
            and complete(self.groups, owners, layers, self.tree)
            and all(doubt is Doubt.NONE for doubt in doubts)
        )
        return Alignment(owners, match if match is None or sure else min(match, UNPROVED), doubts)

    def _different(self) -> list[range]:
        """Forwards that are not like one before, as many as orders are learned from."""
        found: dict[tuple[int, ...], range] = {}
        left = _LEARNED_FROM
        for part in self.parts:
            part = part[:left]
            kinds = tuple(self.kinds[part.start : part.stop])
            if kinds and kinds not in found:
                found[kinds] = part
                left -= len(part)
        return list(found.values())

    def _path(self, children: Children, parts: Sequence[range]) -> tuple[list[Slot], Path]:
        """Find the cheapest paths of some forwards, one after the other."""
        slots = self.tree.slots(children, self.names)
        skip, family = [slot.skip for slot in slots], [slot.family for slot in slots]
        come, stay = self.costs.tables(slots)
        known: dict[tuple[int, ...], Path] = {}
        path, cost = list[int](), 0
        for part in parts:
            kinds = tuple(self.kinds[part.start : part.stop])
            if kinds not in known:
                known[kinds] = cheapest_path(
                    kinds, come, skip, family, back=_BACK, far=_FAR, stay=stay, native=self.native
                )
            path += known[kinds].slots
            cost += known[kinds].cost
        return slots, Path(path, cost)

    def _usual(self, slots: Sequence[Slot], path: Sequence[int], names: Sequence[str]) -> Usual:
        """Count in how many modules of a kind each op was found at each place."""
        found: Usual = {}
        ran = {slots[number].module for number in path} | {slots[number].family for number in path}
        for slot in slots:
            if slot.module in ran:
                key = self.tree.key(slot)
                count, words = found.get(key, (0, Counter()))
                found[key] = (count + 1, words)
        for number, word in {(number, word) for number, word in zip(path, names, strict=True)}:
            found[self.tree.key(slots[number])][1][word] += 1
        return found
