"""Places where ops of a forward may go, and what an op costs there.

    modules   net ( conv | bn | relu | block ( fc | drop ) )
    slots     net.0  conv  net.1  bn  net.2  relu  net.3  block.0  fc  block.1  drop  block.2  net.4

Every leaf is a slot, and so is every stretch of a module between two children. Lists of modules are
never called: their children stand among those of the module around them. Children that only hold
weights have no slot: the module around them uses these itself. A `Sequential` runs its children and
nothing else, so it has no stretches; around the root, what calls the model runs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tightrope.core import Module
from tightrope.record.vocabulary import (
    GLUE,
    HOLDERS,
    JOINS,
    KNOWN,
    LIGHT,
    LISTS,
    SUMS,
    class_of,
    is_derived,
    is_light,
    is_norm,
    makes_loss,
    words_of,
)

Place = Literal["leaf", "before", "after", "gap"]
Children = list[list[int]]
_Ints = npt.NDArray[np.int64]

_MISS, _GLUE, _COMPANION, _DERIVED, _FREE, _FREE_GLUE = 1200, 350, 30, 75, 60, 150
_GAP, _DEEPER, _FIXED, _RESIDUAL, _LOSS = 100, 2, 25, 20, 10
_STOLEN, _STOLEN_LIGHT, _LENT, _LENT_LIGHT = 800, 150, 250, 30
_SKIP_KNOWN, _SKIP_LIGHT, _SKIP_FREE, _SKIP_FUSED = 300, 30, 100, 5
_UNUSUAL, _MAX_DEPTH = 60, 20
_FUSED: Final = frozenset({"scaled_dot_product_attention"})
"""Ops that drop out attention weights by themselves, so that a dropout module for them does not run."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place where ops may go.

    Attributes:
        module: which module makes them.
        place: a leaf, right before or after its signature, or between two children.
        number: of the stretch between children.
        family: the module around; jumps inside a family are cheap.
        skip: what leaving it out costs.
    """

    module: int
    place: Place
    number: int
    family: int
    skip: int


Usual = dict[tuple[object, ...], tuple[int, Counter[str]]]
"""Ops by kind of slot: how many modules have it, and in how many of them an op was found there."""


class Tree:
    """A module tree as it is called: lists taken out, children by caller."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self.modules = modules
        below: Children = [[] for _ in modules]
        for position, module in enumerate(modules[1:], start=1):
            if module.kind not in HOLDERS:
                below[module.parent].append(position)
        self.below = below
        self.called = [module.kind not in HOLDERS | LISTS for module in modules]
        self.callers = [max(module.parent, 0) for module in modules]
        self.depths = [0] * len(modules)
        for position, module in enumerate(modules[1:], start=1):
            self.depths[position] = min(self.depths[module.parent] + 1, _MAX_DEPTH)
            if modules[module.parent].kind in LISTS and module.parent:
                self.callers[position] = self.callers[module.parent]
        self.children: Children = [self._called(position) for position in range(len(modules))]
        self.words = [words_of(module.kind) for module in modules]

    def _called(self, module: int) -> list[int]:
        found: list[int] = []
        waiting = list(reversed(self.below[module]))
        while waiting:
            child = waiting.pop()
            if self.modules[child].kind in LISTS:
                waiting += reversed(self.below[child])
            else:
                found.append(child)
        return found

    def shape(self, module: int) -> tuple[str, tuple[str, ...]]:
        """What modules with equal children have in common."""
        start = len(self.modules[module].path) + 1 if self.modules[module].path else 0
        names = tuple(self.modules[child].path[start:] for child in self.children[module])
        return self.modules[module].kind, names

    def slots(self, children: Children, names: frozenset[str]) -> list[Slot]:
        """List the slots in the order in which children run."""
        found: list[Slot] = []
        waiting: list[tuple[int, int]] = [(0, 0)]
        while waiting:
            module, gap = waiting.pop()
            if not children[module] and not self.below[module]:
                found += self._leaf(module, names)
                continue
            ends = module == 0 and gap in (0, len(children[0]))
            if self.modules[module].kind != "Sequential" or ends:
                found.append(Slot(module, "gap", gap, module, 0))
            if gap < len(children[module]):
                waiting += [(module, gap + 1), (children[module][gap], 0)]
        return found or [Slot(0, "gap", 0, 0, 0)]

    def _leaf(self, module: int, names: frozenset[str]) -> list[Slot]:
        kind, words, family = self.modules[module].kind, self.words[module], self.callers[module]
        skip = _SKIP_FREE if words is None else _SKIP_KNOWN if words.signature else 0
        if is_light(kind):
            own_name = self.modules[module].path.rpartition(".")[2]
            fused = class_of(kind) == "dropout" and "att" in own_name and not names.isdisjoint(_FUSED)
            skip = _SKIP_FUSED if fused else _SKIP_LIGHT
        before, after = (words.before, words.after) if words is not None else ((), ())
        return [
            *(Slot(module, "before", number, family, 0) for number in range(len(before))),
            Slot(module, "leaf", 0, family, skip),
            *(Slot(module, "after", number, family, 0) for number in range(len(after))),
        ]

    def lent(self, slot: Slot) -> dict[str, int]:
        """Ops that a module may make through a child that runs a second time, and the child."""
        found: dict[str, int] = {}
        for child in self.children[slot.module] if slot.place == "gap" else ():
            words = self.words[child]
            if words is not None and not self.below[child]:
                found |= dict.fromkeys(words.signature, child)
        return found

    def key(self, slot: Slot) -> tuple[object, ...]:
        """What equal slots of equal modules have in common."""
        if slot.place == "gap":
            return (*self.shape(slot.module), slot.number)
        return (self.modules[slot.module].kind, slot.place, slot.number)


class Costs:
    """What ops cost in slots; columns are kept, for orders of children are tried again and again."""

    def __init__(self, tree: Tree, vocabulary: Sequence[str], usual: Usual | None = None) -> None:
        self._tree, self._vocabulary, self._usual = tree, vocabulary, usual or {}
        self._numbers: dict[tuple[int, Place, int], int] = {}
        self._columns: list[_Ints] = []
        self._all = np.empty((len(vocabulary), 0), dtype=np.int64)
        leaves = [words for words, below in zip(tree.words, tree.below, strict=True) if words and not below]
        self._claimed = frozenset[str]().union(*(words.signature for words in leaves))
        self._light = frozenset[str]().union(*(KNOWN[name].signature for name in LIGHT))
        self._fused = not _FUSED.isdisjoint(vocabulary)

    def table(self, slots: Sequence[Slot]) -> _Ints:
        """Costs by word and slot."""
        numbers = []
        for slot in slots:
            number = 0 if slot.place == "gap" and not self._usual else slot.number
            at = (slot.module, slot.place, number)
            if at not in self._numbers:
                self._numbers[at] = len(self._columns)
                self._columns.append(self._column(slot))
            numbers.append(self._numbers[at])
        if self._all.shape[1] != len(self._columns):
            self._all = np.stack(self._columns, axis=1)
        return np.ascontiguousarray(self._all[:, numbers])

    def _column(self, slot: Slot) -> _Ints:
        lent = self._tree.lent(slot)
        num_modules, usual = self._usual.get(self._tree.key(slot), (0, Counter()))
        found = []
        for name in self._vocabulary:
            cost = self._leaf(slot, name) if slot.place != "gap" else self._gap(slot, name, lent)
            if num_modules > 1 and cost < _MISS:
                cost += max(-_UNUSUAL // 2, _UNUSUAL - 2 * _UNUSUAL * usual[name] // num_modules)
            found.append(max(cost, 0))
        return np.array(found, dtype=np.int64)

    def _leaf(self, slot: Slot, name: str) -> int:
        words = self._tree.words[slot.module]
        if words is None:
            return self._stolen(name) if name in self._claimed else _FREE_GLUE if name in GLUE else _FREE
        if slot.place != "leaf":
            fixed = words.before if slot.place == "before" else words.after
            return self._free(slot.family, name) - _FIXED if name == fixed[slot.number] else _MISS
        if name in words.signature:
            return 0
        if name in words.companions and not (name == "dropout" and self._fused):
            return _COMPANION
        if is_derived(self._tree.modules[slot.module].kind) and name not in self._claimed:
            return _DERIVED
        return _GLUE if name in GLUE and words.signature else _MISS

    def _gap(self, slot: Slot, name: str, lent: dict[str, int]) -> int:
        if name in lent:
            return _LENT_LIGHT if name in self._light else _LENT
        if name in KNOWN["loss"].signature and makes_loss(self._tree.modules[slot.module].kind):
            return _LOSS - min(_LOSS, self._tree.depths[slot.module])
        return self._free(slot.module, name)

    def _free(self, module: int, name: str) -> int:
        """What an op costs that a module makes itself."""
        cost = _GAP if name not in self._claimed else self._stolen(name)
        if name in SUMS:
            cost += -_RESIDUAL if self._residual(module) else _RESIDUAL
        deeper = -_DEEPER if name in JOINS else _DEEPER
        return cost - deeper * self._tree.depths[module]

    def _stolen(self, name: str) -> int:
        return _STOLEN_LIGHT if name in self._light else _STOLEN

    def _residual(self, module: int) -> bool:
        """Whether a module normalizes directly, or in a sequence of its own."""
        tree = self._tree
        below = list(tree.children[module])
        below += [
            inner
            for child in below
            if tree.modules[child].kind == "Sequential"
            for inner in tree.children[child]
        ]
        return any(is_norm(tree.modules[child].kind) for child in below)
