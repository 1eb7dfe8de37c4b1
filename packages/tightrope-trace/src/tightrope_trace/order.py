"""In which order the children of each class run.

Idea        Start from the order of definition, with children called input first, with norms before their
            branches, and with norms behind them (see `prior`). Where the cheapest path jumps, lends or
            leaves children out, try these whole orders, to move one child (or one list of children) of a
            class to another place, and to let two lists alternate, in all modules of the class at once,
            and keep the best. Elsewhere try whole orders and alternating lists only. Repeat as long as
            the path becomes cheaper. Classes of torch with a known program are not searched beyond it.
Guarantee   The path is never more expensive than that of the order of definition, penalties included.
Complexity  At most ``_CELLS`` cells of paths (ops x slots) in all.
Gaps        A local search: two moves that pay only together are not found.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from tightrope_trace.paths import Path
from tightrope_trace.prior import (
    Units,
    alternations,
    as_defined,
    has_program,
    moves,
    named_first,
    norm_first,
    norm_last,
    order_penalty,
    units_of,
)
from tightrope_trace.slots import Children, Slot, Tree

_CELLS = 30_000_000
_OVERHEAD = 300
"""Making slots and their costs takes as long as so many rows of a path."""
Evaluate = Callable[[Children], tuple[list[Slot], Path]]
Shape = tuple[str, tuple[str, ...]]


def find_order(tree: Tree, words: Sequence[str], evaluate: Evaluate) -> Children:
    """Find an order of the children of every module under which the cheapest path is cheap.

    Args:
        tree: of modules.
        words: bare names of the ops.
        evaluate: finds the slots and the cheapest path for children in some order.
    """
    shapes: dict[Shape, list[int]] = {}
    for module, below in enumerate(tree.children):
        if len(below) > 1 and tree.modules[module].kind != "Sequential":
            shapes.setdefault(tree.shape(module), []).append(module)
    found: dict[tuple[tuple[int, ...], ...], _OrderSearch] = {}
    for arrangement in ARRANGEMENTS:
        search = _OrderSearch(tree, words, evaluate, shapes, arrangement)
        found.setdefault(tuple(map(tuple, search.children)), search)
    for search in found.values():
        while search.improve():
            pass
    return min(found.values(), key=lambda search: search.cost).children


ARRANGEMENTS: Final = (as_defined, named_first, norm_first, norm_last)
"""Orders of all children of a class to start from, and to try beside single moves."""


class _OrderSearch:
    """The best order so far."""

    def __init__(
        self,
        tree: Tree,
        words: Sequence[str],
        evaluate: Evaluate,
        shapes: dict[Shape, list[int]],
        start: Callable[[Sequence[str], Sequence[str]], Units],
    ) -> None:
        self.tree, self.words, self.evaluate, self.shapes = tree, words, evaluate, shapes
        self.kinds = {
            shape: [tree.modules[child].kind for child in tree.children[modules[0]]]
            for shape, modules in shapes.items()
        }
        self.units = {shape: start(shape[1], self.kinds[shape]) for shape in shapes}
        self.children = tree.children
        for shape, units in self.units.items():
            self.children = self._with(shape, units)
        self.slots, self.path = evaluate(self.children)
        self.left = _CELLS

    @property
    def cost(self) -> int:
        """Of the cheapest path, and penalties of orders."""
        return self.path.cost + sum(order_penalty(units, shape[1]) for shape, units in self.units.items())

    def improve(self) -> bool:
        """Apply the best move inside each class that is blamed; whether there was one."""
        improved = False
        blamed = self._blamed()
        for shape in [*blamed, *(shape for shape in self.shapes if shape not in blamed)]:
            best, least = self.units[shape], self.path.cost + order_penalty(self.units[shape], shape[1])
            for candidate in self._candidates(shape, every=shape in blamed):
                if self.left <= 0:
                    return False
                self.left -= len(self.slots) * (len(self.path.slots) + _OVERHEAD)
                path = self.evaluate(self._with(shape, candidate))[1]
                if (cost := path.cost + order_penalty(candidate, shape[1])) < least:
                    best, least = candidate, cost
            if best is not self.units[shape]:
                improved = True
                self.units[shape] = best
                self.children = self._with(shape, best)
                self.slots, self.path = self.evaluate(self.children)
        return improved

    def _candidates(self, shape: Shape, *, every: bool) -> Iterator[Units]:
        """List whole arrangements and lists that alternate, and every single move, but for known programs."""
        kinds = self.kinds[shape]
        for arrangement in ARRANGEMENTS:
            if (whole := arrangement(shape[1], kinds)) != self.units[shape]:
                yield whole
        if not has_program(*shape) and not every:
            yield from alternations(self.units[shape], shape[1])
        elif not has_program(*shape):
            yield from moves(self.units[shape], shape[1], kinds, units_of(shape[1]))

    def _with(self, shape: Shape, units: Units) -> Children:
        order = [child for unit in units for child in unit]
        found = list(self.children)
        for module in self.shapes[shape]:
            found[module] = [self.tree.children[module][child] for child in order]
        return found

    def _blamed(self) -> list[Shape]:
        """Classes inside which the path jumps, lends or leaves a child out, the innermost first."""
        blame: Counter[Shape] = Counter()
        for before, after in pairwise([-1, *self.path.slots, len(self.slots)]):
            if after < before:
                self._blame(self.slots[after].module, blame)
            for number in range(before + 1, after):
                if self.slots[number].skip:
                    self._blame(self.slots[number].module, blame)
        lent = [self.tree.lent(slot) for slot in self.slots]
        for number, word in zip(self.path.slots, self.words, strict=False):
            if word in lent[number]:
                self._blame(self.slots[number].module, blame)
        return sorted(blame, key=lambda shape: -self.tree.depths[self.shapes[shape][0]])

    def _blame(self, module: int, blame: Counter[Shape]) -> None:
        """Everything around a module may be in the wrong order."""
        while True:
            shape = self.tree.shape(module)
            if shape in self.shapes:
                blame[shape] += 1
            if module == 0:
                return
            module = self.tree.callers[module]
