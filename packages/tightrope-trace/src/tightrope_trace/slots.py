"""Places where ops of a forward may go, and what an op costs there.

    modules   net ( conv | bn | relu | block ( fc | drop ) )
    slots     net.0  conv  net.1  bn  net.2  relu  net.3  block.0  fc  block.1  drop  block.2  net.4

Every leaf is a slot, and so is every stretch of a module between two children. Lists of modules are
never called: their children stand among those of the module around them. Children that only hold
weights have no slot: the module around them uses these itself. A `Sequential` runs its children and
nothing else, so it has no stretches, but where ranges of the profiler leave ops behind in it; around the
root, what calls the model runs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tightrope.core import Module
from tightrope_trace.prior import OWN_WORDS, has_program
from tightrope_trace.vocabulary import (
    GLUE,
    HOLDERS,
    JOINS,
    KNOWN,
    LIGHT,
    LISTS,
    MADE,
    RANGES,
    SUMS,
    class_of,
    is_chain,
    is_derived,
    is_light,
    is_norm,
    makes_loss,
    words_of,
)

Place = Literal["leaf", "before", "after", "gap"]
Children = list[list[int]]
_Ints = npt.NDArray[np.int64]

_MISS, _GLUE, _COMPANION, _DERIVED, _FREE, _FREE_GLUE, _OWN_GLUE = 1200, 350, 30, 75, 60, 150, 90
IMPOSSIBLE: Final = 1000
"""Cost from which on an op is not one of a slot."""
_GAP, _DEEPER, _FIXED, _RESIDUAL, _LOSS = 100, 2, 25, 20, 10
_STOLEN, _STOLEN_LIGHT, _LENT, _LENT_LIGHT = 800, 150, 250, 30
_HEAD, _RANGE, _OUTER, _EDGE, _JOINED = 45, 90, 15, 12, 25
_SKIP_KNOWN, _SKIP_LIGHT, _SKIP_FREE, _SKIP_FUSED = 300, 30, 100, 5
_UNUSUAL, _MAX_DEPTH = 60, 20
_INTO, _AGAIN = 90, 150
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
    """A module tree as it is called: lists taken out, children by caller.

    Args:
        modules: in order of definition, root first.
        names: of ops that ran; a class that is only called like one of torch's, as ``GCNConv``, is an
            unknown one where none of its ops are among them.
    """

    def __init__(self, modules: Sequence[Module], names: frozenset[str] | None = None) -> None:
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
        self.has_list = [any(modules[child].kind in LISTS for child in row) for row in below]
        self.chains = [self._chain(position) for position in range(len(modules))]
        for position, (words, module) in enumerate(zip(self.words, modules, strict=True)):
            if words is not None and names is not None and is_derived(module.kind):
                self.words[position] = None if names.isdisjoint(words.signature) else words

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

    def _chain(self, module: int) -> bool:
        """Whether a module looks as if it began with its first child and ended with its last one."""
        below = self.children[module]
        layers = all(self.words[child] is not None and not self.below[child] for child in below)
        acts = any(class_of(self.modules[child].kind) in LIGHT - {"dropout"} for child in below)
        called = is_chain(self.modules[module].kind) and not self.has_list[module]
        return called or (layers and acts)

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
            if self.modules[module].kind != "Sequential" or ends or not names.isdisjoint(RANGES):
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

    def residual(self, module: int) -> int:
        """What a sum costs more in a module: less where it normalizes, or a sequence of its own does."""
        below = list(self.children[module])
        below += [
            inner
            for child in below
            if self.modules[child].kind == "Sequential"
            for inner in self.children[child]
        ]
        return -_RESIDUAL if any(is_norm(self.modules[child].kind) for child in below) else _RESIDUAL

    def key(self, slot: Slot) -> tuple[object, ...]:
        """What equal slots of equal modules have in common."""
        if slot.place == "gap":
            number = -1 if self.modules[slot.module].kind == "Sequential" else slot.number
            return (*self.shape(slot.module), number)
        return (self.modules[slot.module].kind, slot.place, slot.number)


class Costs:
    """What ops cost in slots; columns are kept, for orders of children are tried again and again."""

    def __init__(
        self, tree: Tree, vocabulary: Sequence[str], usual: Usual | None = None, *, edges: bool = False
    ) -> None:
        self._tree, self._vocabulary, self._usual, self._edges = tree, vocabulary, usual or {}, edges
        self._numbers: dict[tuple[int, Place, int], int] = {}
        self._columns: list[tuple[_Ints, _Ints]] = []
        self._all = np.empty((2, len(vocabulary), 0), dtype=np.int64)
        leaves = [words for words, below in zip(tree.words, tree.below, strict=True) if words and not below]
        self._claimed = frozenset[str]().union(*(words.signature for words in leaves))
        self._light = frozenset[str]().union(*(KNOWN[name].signature for name in LIGHT))
        self._fused = not _FUSED.isdisjoint(vocabulary)

    def tables(self, slots: Sequence[Slot]) -> tuple[_Ints, _Ints]:
        """Costs by word and slot, of coming to a slot and of staying in it."""
        numbers = []
        for slot in slots:
            number = slot.number
            if slot.place == "gap" and not self._usual and not self._is_end(slot):
                number = 0 if self._at_edge(slot) else 1
            at = (slot.module, slot.place, number)
            if at not in self._numbers:
                self._numbers[at] = len(self._columns)
                self._columns.append(self._column(slot))
            numbers.append(self._numbers[at])
        if self._all.shape[2] != len(self._columns):
            self._all = np.stack([np.stack(columns, axis=1) for columns in zip(*self._columns, strict=True)])
        come, stay = np.ascontiguousarray(self._all[:, :, numbers])
        return come, stay

    def _column(self, slot: Slot) -> tuple[_Ints, _Ints]:
        lent = self._tree.lent(slot)
        num_modules, usual = self._usual.get(self._tree.key(slot), (0, Counter()))
        found = []
        words = self._tree.words[slot.module] if slot.place == "leaf" else None
        enter, again = [], []
        for name in self._vocabulary:
            cost = self._leaf(slot, name) if slot.place != "gap" else self._gap(slot, name, lent)
            within = words is not None and name not in words.signature and name not in words.starts
            enter.append(_INTO if within else 0)
            again.append(_AGAIN if words is not None and words.single and name in words.signature else 0)
            if num_modules > 1 and cost < _MISS:
                cost += max(-_UNUSUAL // 2, _UNUSUAL - 2 * _UNUSUAL * usual[name] // num_modules)
            found.append(max(cost, 0))
        costs = np.array(found, dtype=np.int64)
        return costs + np.array(enter, dtype=np.int64), costs + np.array(again, dtype=np.int64)

    def _leaf(self, slot: Slot, name: str) -> int:
        words = self._tree.words[slot.module]
        if words is None:
            glue = _OWN_GLUE if self._edges else _FREE_GLUE
            return self._stolen(name) if name in self._claimed else glue if name in GLUE else _FREE
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

    def _at_edge(self, slot: Slot) -> bool:
        """Whether a stretch is before all children of its module, or behind them."""
        return slot.number in (0, len(self._tree.children[slot.module]))

    def _is_end(self, slot: Slot) -> bool:
        """Whether a slot is behind all children of the model, where weights may be used again."""
        return slot.module == 0 and slot.place == "gap" and slot.number == len(self._tree.children[0])

    def _gap(self, slot: Slot, name: str, lent: dict[str, int]) -> int:
        if name in lent:
            return _LENT_LIGHT if name in self._light else _LENT
        own = OWN_WORDS.get(self._tree.modules[slot.module].kind)
        outside = slot.module == 0 and self._at_edge(slot)
        if own is not None and not outside and has_program(*self._tree.shape(slot.module)):
            return self._free(slot.module, name) if name in own else _MISS
        ends = self._at_edge(slot)
        if self._tree.modules[slot.module].kind == "Sequential" and not outside:
            return _MISS if name not in RANGES else _RANGE + _OUTER if ends else _RANGE
        if self._is_end(slot) and name in self._claimed & MADE:
            return _HEAD
        if name in KNOWN["loss"].signature and makes_loss(self._tree.modules[slot.module].kind):
            return _LOSS - min(_LOSS, self._tree.depths[slot.module])
        edge = (
            _EDGE
            if self._edges
            and ends
            and name not in GLUE | SUMS | self._light
            and self._tree.chains[slot.module]
            else 0
        )
        return self._free(slot.module, name) + edge

    def _free(self, module: int, name: str) -> int:
        """What an op costs that a module makes itself."""
        cost = _GAP if name not in self._claimed else self._stolen(name)
        if name in SUMS and not self._edges:
            cost += self._tree.residual(module)
        deeper = -_DEEPER if name in JOINS else _DEEPER
        joined = _JOINED if self._edges and name in JOINS and self._tree.has_list[module] else 0
        return cost - deeper * self._tree.depths[module] - joined

    def _stolen(self, name: str) -> int:
        return _STOLEN_LIGHT if name in self._light else _STOLEN
