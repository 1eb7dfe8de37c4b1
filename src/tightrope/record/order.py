"""In which order the children of each class run.

Idea        Start from the order of definition, and again with children called input first (and with the
            norms of torch's encoder layers first). Where the
            cheapest path jumps, lends or leaves children out, try to move one child (or one list of
            children) of a class to another place, or to let two lists of equal length alternate, in all
            modules of the class at once, and keep the best. Repeat as long as the path becomes cheaper.
Guarantee   The path is never dearer than that of the order of definition, habits (see `habits`) included.
Complexity  At most ``_CELLS`` cells of paths (ops x slots) in all.
Gaps        A local search: two moves that pay only together are not found.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from tightrope.native.solvers.align import Path
from tightrope.record.habits import Units, moves, named_first, norm_first, surprise, units_of
from tightrope.record.slots import Children, Slot, Tree

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
    starts = [units_of, named_first]
    if any(norm_first(names) != units_of(names) for _, names in shapes):
        starts.append(norm_first)
    found = [_PathSearch(tree, words, evaluate, shapes, start) for start in starts]
    for search in found:
        while search.improve():
            pass
    return min(found, key=lambda search: search.cost).children


class _PathSearch:
    """The best order so far."""

    def __init__(
        self,
        tree: Tree,
        words: Sequence[str],
        evaluate: Evaluate,
        shapes: dict[Shape, list[int]],
        start: Callable[[tuple[str, ...]], Units],
    ) -> None:
        self.tree, self.words, self.evaluate, self.shapes = tree, words, evaluate, shapes
        self.units = {shape: start(shape[1]) for shape in shapes}
        self.children = tree.children
        for shape, units in self.units.items():
            self.children = self._with(shape, units)
        self.slots, self.path = evaluate(self.children)
        self.left = _CELLS

    @property
    def cost(self) -> int:
        """Of the cheapest path, and of what orders do against habit."""
        return self.path.cost + sum(surprise(units, shape[1]) for shape, units in self.units.items())

    def improve(self) -> bool:
        """Apply the best move inside each class that is blamed; whether there was one."""
        improved = False
        for shape in self._blamed():
            kinds = [self.tree.modules[child].kind for child in self.tree.children[self.shapes[shape][0]]]
            best, least = self.units[shape], self.path.cost + surprise(self.units[shape], shape[1])
            for candidate in moves(self.units[shape], kinds, units_of(shape[1])):
                if self.left <= 0:
                    return False
                self.left -= len(self.slots) * (len(self.path.slots) + _OVERHEAD)
                path = self.evaluate(self._with(shape, candidate))[1]
                if (cost := path.cost + surprise(candidate, shape[1])) < least:
                    best, least = candidate, cost
            if best is not self.units[shape]:
                improved = True
                self.units[shape] = best
                self.children = self._with(shape, best)
                self.slots, self.path = self.evaluate(self.children)
        return improved

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
