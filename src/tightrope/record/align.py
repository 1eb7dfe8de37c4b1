"""Which module ran which op, from names and order alone.

Idea        Ops are assigned to slots (see `slots`) by one global alignment (Viterbi): the cheapest path
            through the slots, where an op costs little in a slot that makes such ops and much elsewhere,
            leaving out a leaf costs, and jumping (a module that runs twice, or out of order) costs more.
            Children need not run in the order of their definition: the order of the children of a class
            is the one under which the cheapest path is cheapest (see `order`). At last, an op that most
            modules of a class do not make at that place becomes dear there, and the other way round.
            A child that runs again is lent to its parent.
Source      Replaces the greedy cursor of Hotline (Snider, Chevalier, Pekhimenko, MLSys 2023).
Guarantee   The path is the cheapest one under these costs and orders.
Complexity  O(ops x slots) time and bytes for every order that is tried; see `order` for how many.
Gaps        Modules that make the same ops one after another, in an order other than that of their
            definition, are told apart by nothing. Modules that share weights keep their first path.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tightrope.core import Module
from tightrope.native.solvers.align import Path, cheapest_path
from tightrope.record.match import match_of
from tightrope.record.order import find_order
from tightrope.record.slots import Children, Costs, Slot, Tree, Usual
from tightrope.record.vocabulary import plain

_BACK, _FAR = 50, 700
_LEARNED_FROM = 3000
"""Ops from which the order of children is learned: those of a few steps, where a profile has many."""


class Alignment(NamedTuple):
    """Where ops belong, and how well they go with the modules.

    Attributes:
        owners: one position in the module tree per op.
        match: between 0 and 1, see `tightrope.record.match`; None where nothing tells.
    """

    owners: list[int]
    match: float | None


def align(names: Sequence[str], modules: Sequence[Module], *, native: bool = True) -> list[int]:
    """Find the module of every op; see `aligned`.

    Example:
        >>> tree = [Module(""), Module("fc", "Linear", 0), Module("act", "ReLU", 0)]
        >>> align(["aten::linear", "aten::relu", "aten::sum"], tree)
        [1, 2, 0]
    """
    return aligned(names, modules, native=native).owners


def aligned(names: Sequence[str], modules: Sequence[Module], *, native: bool = True) -> Alignment:
    """Find the module of every op, and say how well ops and modules go together.

    Args:
        names: of outermost ops of a forward pass, in the order in which they ran.
        modules: the module tree in order of definition, root first.
        native: whether C++ may be used.

    Example:
        >>> aligned(["aten::linear"], [Module(""), Module("a", "Linear", 0), Module("b", "Linear", 0)])
        Alignment(owners=[1], match=0.5)
    """
    words = [plain(name) for name in names]
    aligner = _Aligner(words, Tree(modules), native=native)
    aligner.learn()
    return aligner.found()


class _Aligner:
    """Ops, slots and costs of one profile."""

    def __init__(self, words: list[str], tree: Tree, *, native: bool) -> None:
        self.tree, self.words, self.native = tree, words, native
        self.vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
        self.kinds = [self.vocabulary[word] for word in words]
        self.names = frozenset(self.vocabulary)
        self.costs = Costs(tree, list(self.vocabulary))
        self.children: Children = tree.children

    def learn(self) -> None:
        """Find the order of children, then what is usual where."""
        head = self.kinds[:_LEARNED_FROM]
        self.children = find_order(
            self.tree, self.words[:_LEARNED_FROM], lambda children: self._path(children, head)
        )
        slots, path = self._path(self.children, head)
        self.costs = Costs(self.tree, list(self.vocabulary), self._usual(slots, path.slots))

    def found(self) -> Alignment:
        """Name the module of every op."""
        slots, path = self._path(self.children, self.kinds)
        lent = [self.tree.lent(slot) for slot in slots]
        owners = [
            lent[number].get(word, slots[number].module)
            for word, number in zip(self.words, path.slots, strict=True)
        ]
        return Alignment(owners, match_of(self.words, self.tree, slots, path.slots))

    def _path(self, children: Children, kinds: Sequence[int]) -> tuple[list[Slot], Path]:
        slots = self.tree.slots(children, self.names)
        if not kinds:
            return slots, Path([], 0)
        skip, family = [slot.skip for slot in slots], [slot.family for slot in slots]
        table = self.costs.table(slots)
        return slots, cheapest_path(kinds, table, skip, family, back=_BACK, far=_FAR, native=self.native)

    def _usual(self, slots: Sequence[Slot], path: Sequence[int]) -> Usual:
        """Count in how many modules of a kind each op was found at each place."""
        found: Usual = {}
        ran = {slots[number].module for number in path} | {slots[number].family for number in path}
        for slot in slots:
            if slot.module in ran:
                key = self.tree.key(slot)
                count, words = found.get(key, (0, Counter()))
                found[key] = (count + 1, words)
        for number, word in {(number, word) for number, word in zip(path, self.words, strict=False)}:
            found[self.tree.key(slots[number])][1][word] += 1
        return found
