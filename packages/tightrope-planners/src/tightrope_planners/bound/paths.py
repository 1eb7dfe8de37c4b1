"""Input paths: a storage that is needed again was live at a row, or something before it was.

Idea        A storage s0 that a first run uses after a row was live there, or its producer ran again
            after it; that run read s1, which was live at the row, or made again after it too, and so
            on. For every path s0, s1, ... backwards through producers, one of its storages was live at
            the row, or the producer of the last one ran again since. Over several stretches this says
            more than the single steps do: a run that is half in one stretch and half in the next still
            needs its inputs once.
Source      own; a Chvatal-Gomory cut of the staged problem's single steps
Guarantee   Holds for every schedule that keeps the base order.
Complexity  A shortest path per row and storage: O(rows * stretches * (storages + reads)).
Gaps        One path per storage and row is looked for, the one that the solution breaks most.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tightrope.core import InputPath, StorageId
from tightrope_planners.bound.stages import Constraint, Fact, StagedProblem

_BROKEN: Final = 1e-4
"""By how much a solution must break a path."""


@dataclass(slots=True)
class Paths:
    """Paths found so far in a staged problem.

    Attributes:
        staged: the problem.
        found: paths, in the order they were found.
        known: the same.
        steps: storages looked at so far.
    """

    staged: StagedProblem
    found: list[InputPath] = field(default_factory=list)
    known: set[InputPath] = field(default_factory=set)
    steps: int = 0

    def broken(self, value: Callable[[Fact], float | None]) -> list[Constraint]:
        """List new paths that a solution breaks.

        Args:
            value: how far a fact holds, 0 to 1; None where the problem does not have it.
        """
        new: list[Constraint] = []
        for row in range(len(self.staged.ops)):
            for last, wanted in self._wanted(row).items():
                lengths = _Lengths(self.staged, row, last, value)
                for storage in wanted:
                    if lengths.to(storage) < 1 - _BROKEN:
                        new += self._added(lengths.path(storage))
                self.steps += len(lengths.length)
        return new

    def _wanted(self, row: int) -> dict[int, list[StorageId]]:
        """Group the idle storages of a row by the stretch in which they are used next."""
        groups: dict[int, list[StorageId]] = {}
        for storage in self.staged.idle[row]:
            last = self.staged.next_use(storage, row)
            if last is not None:
                groups.setdefault(last, []).append(storage)
        return groups

    def _added(self, path: InputPath) -> Iterator[Constraint]:
        if path in self.known:
            return
        self.known.add(path)
        self.found.append(path)
        terms = [(fact, 1) for fact in self.staged.facts_of(path)]
        yield Constraint(("paths", len(self.found) - 1, 0, 0), tuple(terms), 1)


class _Lengths:
    """Shortest paths from storages backwards, by how far what they pass was live or runs again."""

    def __init__(
        self, staged: StagedProblem, row: int, last: int, value: Callable[[Fact], float | None]
    ) -> None:
        self.staged, self.row, self.last, self.value = staged, row, last, value
        self.length: dict[StorageId, float] = {}
        self.before: dict[StorageId, StorageId] = {}

    def to(self, storage: StorageId) -> float:
        """Length of the shortest path that starts at a storage; 2 where it is certain anyway."""
        waiting = [storage]
        while waiting:
            at = waiting[-1]
            open_inputs = [s for s in self.staged.lineage.read_for(at) if s not in self.length]
            if at in self.length or not self.staged.is_open(at, self.row):
                self.length.setdefault(at, 2.0)
                waiting.pop()
            elif open_inputs:
                waiting += open_inputs
            else:
                self._settle(at)
                waiting.pop()
        return self.length[storage]

    def _settle(self, storage: StorageId) -> None:
        """Choose how a storage comes to be had after the row, its inputs being settled."""
        least = 0.0
        for fact in self.staged.remakes(storage, self.row, self.last):
            ran = self.value(fact)
            least += 2.0 if ran is None else ran
        for read in self.staged.lineage.read_for(storage):
            if self.length[read] < least - 1e-9:
                least, self.before[storage] = self.length[read], read
        kept = self.value(("live", storage, self.row))
        self.length[storage] = least + (2.0 if kept is None else kept)

    def path(self, storage: StorageId) -> InputPath:
        """The shortest path that starts at a storage."""
        storages = [storage]
        while storages[-1] in self.before:
            storages.append(self.before[storages[-1]])
        return InputPath(self.row, self.last, tuple(storages))
