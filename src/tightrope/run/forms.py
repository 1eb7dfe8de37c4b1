"""The forms of captured graphs: one forward, and a backward from the outputs that a loss reads.

Idea        A model may return more than its loss: logits, hidden states, a cache. Eager runs no backward
            from an output that no loss reads, so neither does a plan: a backward is traced from those
            outputs alone for which gradients came, and the next call is planned with it.
Guarantee   Gradients are those of the ops that eager runs. What was read once is counted as read from then
            on; a backward from fewer outputs, or from others, is made from what the forward left.
Gaps        Where an output is read that never was, and the forward read tensors that have changed since,
            that backward is refused; the next step is planned for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tightrope.capture.program import Program
from tightrope.core import StorageId
from tightrope.lower.remainder import loses_results, same_storages
from tightrope.run.captured import Captured


class Forms:
    """Which form of a captured graph is expected next; state of the runtime, used from one thread at a time.

    Args:
        captured: graphs by number; every form has a number of its own.
        add: takes a new one in, traced from a program with these inputs.
    """

    def __init__(
        self, captured: Sequence[Captured], add: Callable[[Program, Sequence[Any], str], int]
    ) -> None:
        self._captured, self._add = captured, add
        self._number: dict[tuple[int, frozenset[int]], int] = {}
        self._read: dict[tuple[int, int], frozenset[int]] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._same: dict[tuple[int, int], dict[StorageId, StorageId]] = {}

    def expected(self, first: int, turn: int = 0) -> int:
        """The form of a graph that its next forward is planned with.

        Args:
            first: number of the graph as it was captured.
            turn: calls of it that came before in this step.
        """
        return self._next.get((first, turn), self._next.get((first, 0), first))

    def read(self, number: int, tangents: Sequence[Any]) -> frozenset[int]:
        """List the gradients that came, of those from which a backward may start."""
        came = (k for k, tangent in enumerate(tangents) if isinstance(tangent, torch.Tensor))
        return self._captured[number].program.ends.intersection(came)

    def learn(self, first: int, turn: int, read: frozenset[int], given: Sequence[Any]) -> tuple[int, int]:
        """Note which gradients came; return the form of this backward, and the form to expect next.

        Args:
            first: number of the graph as it was captured.
            turn: calls of it that came before in this step.
            read: numbers of the gradients that came.
            given: what the forward was given.
        """
        every = self._captured[first].program.ends
        self._read[first, turn] = ever = self._read.get((first, turn), read) | read
        now = self._of(first, read, given)
        following = self._of(first, ever, given)
        if loses_results(self._captured[following].graph):
            following = self._of(first, every, given)
        self._next[first, turn] = following
        return now, following

    def _of(self, first: int, read: frozenset[int], given: Sequence[Any]) -> int:
        one = self._captured[first].program
        if one.read == read:
            return first
        if (first, read) not in self._number:
            assert one.traced_from is not None
            why = f"a loss reads {len(read)} of {len(one.ends)} outputs, not {len(one.read)}"
            self._number[first, read] = self._add(one.traced_from(read), given, why)
        return self._number[first, read]

    def storages(self, one: int, other: int) -> dict[StorageId, StorageId]:
        """Map what the forward of a form makes to what that of another form makes."""
        if (one, other) not in self._same:
            self._same[one, other] = same_storages(self._captured[one].graph, self._captured[other].graph)
        return self._same[one, other]
