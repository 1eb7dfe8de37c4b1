"""Cases of a branch and bound over a staged problem, written down so that they can be checked.

Idea        The tree is walked as whoever checks it walks it, on integers: what a case fixes and what it
            is worth follow from its weights alone, whatever the search believed.
Source      weak duality; reduced-cost fixing
Guarantee   The value returned is the one that the numbers returned prove.
Complexity  O(cases * weights)
Gaps        Weights are rounded down to multiples of one scale for the whole tree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tightrope.core import Choice, Fixing, InputPath, Nanoseconds, StageCase, Stages
from tightrope_planners.bound.program import Answer, Assumed, StagedProgram

_SCALE_BITS: Final = 52
_WEIGHT_BITS: Final = 61
_NUMBERS: Final = {"fed": 3, "paths": 1, "barriers": 1}
"""Numbers that name a constraint, where they are not two."""


class Taken(NamedTuple):
    """A choice and its side: more than ``most`` of some columns are 1, or at most so many.

    Attributes:
        columns: one, or those of a group.
        group: -1 for one column.
        most: 0 for one column.
        more: the side.
    """

    columns: tuple[int, ...]
    group: int
    most: int
    more: bool


@dataclass(slots=True)
class Node:
    """One case: choices above it, what is assumed, its answer, fixings it starts with, cases below."""

    taken: tuple[Taken, ...]
    assumed: Assumed
    answer: Answer
    fixings: list[Answer] = field(default_factory=list)
    children: tuple["Node", ...] = ()

    @property
    def value(self) -> float:
        """Added time, ns, up to the solver's tolerance."""
        return self.answer.value


def written(
    root: Node, program: StagedProgram, paths: Sequence[InputPath], *, unit: Nanoseconds, target: Nanoseconds
) -> tuple[Nanoseconds, Stages]:
    """Write a tree of cases down, and evaluate it exactly.

    Args:
        root: the first case.
        program: that all were solved with.
        paths: that its constraints name by position.
        unit: every added time is a multiple of it.
        target: added time up to which facts were fixed.

    Returns:
        The added time that is proved, and the numbers that prove it.
    """
    made = _Written(root, program, target)
    least = made.least()
    if any(isinstance(node, Fixing) for node in made.tree):
        least = min(least, target * made.scale)
    extra = max(0, -(-least // (unit * made.scale))) * unit
    staged, tree = program.staged, tuple(made.tree)
    named = tuple(paths[number] for number in made.named["paths"])
    barriers = tuple(staged.barriers[number] for number in made.named["barriers"])
    return extra, Stages(staged.budget, made.scale, staged.ops, tree, named, target, barriers)


class _Written:
    """The tree of a search in integers, evaluated as whoever checks it will."""

    def __init__(self, root: Node, program: StagedProgram, target: Nanoseconds) -> None:
        self.root, self.program, self.target = root, program, target
        heaviest, waiting = 1.0, [root]
        while waiting:
            node = waiting.pop()
            waiting += node.children
            for answer in (*node.fixings, node.answer):
                numbers = (*answer.weights.values(), *map(abs, answer.groups.values()))
                heaviest = max(heaviest, *numbers, 1.0)
        self.scale = 1 << max(0, min(_SCALE_BITS, _WEIGHT_BITS - math.ceil(math.log2(heaviest))))
        self.tree: list[Choice | Fixing | StageCase] = []
        self.named: dict[str, dict[int, int]] = {"paths": {}, "barriers": {}}

    def least(self) -> int:
        """Evaluate every case with what is fixed above it; the cheapest counts."""
        least = math.inf
        waiting: list[tuple[Node, dict[int, int]]] = [(self.root, {})]
        while waiting:
            node, fixed = waiting.pop()
            for answer in node.fixings:
                case, given, total = self._case(node, answer)
                self.tree.append(Fixing(case))
                fixed = fixed | self._decided(given, total, fixed)
            if node.children:
                self.tree.append(self._written(node.children[0].taken[-1]))
                waiting += [(child, self._entered(child, fixed)) for child in reversed(node.children)]
                continue
            case, given, total = self._case(node, node.answer)
            self.tree.append(case)
            least = min(least, total + self._least(given, fixed))
        return int(least)

    def _written(self, choice: Taken) -> Choice:
        what, _, row = self.program.facts[choice.columns[0]]
        assert what != "held"
        items = tuple(self.program.facts[column][1] for column in choice.columns)
        return Choice(what, items, row, choice.most)

    def _entered(self, child: Node, fixed: dict[int, int]) -> dict[int, int]:
        side = child.taken[-1]
        return fixed if side.group >= 0 else fixed | {side.columns[0]: int(side.more)}

    def _case(self, node: Node, answer: Answer) -> tuple[StageCase, dict[int, int], int]:
        """Write weights down; return the case, what every column gives, and the sum of the rest."""
        kinds: dict[str, list[Any]] = {kind: [] for kind in StageCase.__struct_fields__}
        total, given = 0, dict[int, int]()
        for number, weight in answer.weights.items():
            whole, constraint = int(weight * self.scale), self.program.constraints[number]
            if not whole:
                continue
            kind, *name = constraint.key
            if (named := self.named.get(kind)) is not None:
                name = [named.setdefault(name[0], len(named))]
            kinds[kind].append((*name[: _NUMBERS.get(kind, 2)], whole))
            total += whole * constraint.least
            for fact, factor in constraint.terms:
                column = self.program.column[fact]
                given[column] = given.get(column, 0) + whole * factor
        for group, weight in answer.groups.items():
            whole, more = int(abs(weight) * self.scale), weight > 0
            at = [n for n, side in enumerate(node.taken) if side.group == group and side.more == more]
            if not whole or not at:
                continue
            side, sign = node.taken[at[-1]], 1 if more else -1
            kinds["choices"].append((at[-1], whole))
            total += sign * whole * (side.most + more)
            for column in side.columns:
                given[column] = given.get(column, 0) + sign * whole
        return StageCase(*map(tuple, kinds.values())), given, total

    def _least(self, given: dict[int, int], fixed: dict[int, int]) -> int:
        total = 0
        for column in given.keys() | fixed.keys():
            rest = self.program.price[column] * self.scale - given.get(column, 0)
            total += rest * fixed[column] if column in fixed else min(0, rest)
        return total

    def _decided(self, given: dict[int, int], total: int, fixed: dict[int, int]) -> dict[int, int]:
        total += self._least(given, fixed)
        rests = {
            c: self.program.price[c] * self.scale - gives for c, gives in given.items() if c not in fixed
        }
        return {
            c: int(rest < 0) for c, rest in rests.items() if total + abs(rest) >= self.target * self.scale
        }
