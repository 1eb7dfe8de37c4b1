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
from weakref import WeakMethod

import torch

from tightrope.capture.program import Program
from tightrope.core import StorageId, TightropeError
from tightrope.lower.remainder import loses_results, same_storages
from tightrope.run.running import Pending
from tightrope.run.unit import Unit
from tightrope.run.units import Units


class Forms:
    """Which form of a captured graph is expected next; state of the runtime, used from one thread at a time.

    Args:
        units: with the captured graphs; every form has a number of its own.
        add: a method; takes a new form in, given inputs and the cause of its first plan; returns its number.
    """

    def __init__(self, units: Units, add: Callable[[Program, Sequence[Any], str], int]) -> None:
        self._units, self._add = units, WeakMethod(add)
        self._number: dict[tuple[int, frozenset[int]], int] = {}
        self._read: dict[tuple[int, int], frozenset[int]] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._same: dict[tuple[int, int], dict[StorageId, StorageId]] = {}

    def expected(self, first: int, before: int = 0) -> int:
        """The form of a graph that its next forward is planned with.

        Args:
            first: number of the graph as it was captured.
            before: calls of it that are pending.
        """
        return self._next.get((first, before), self._next.get((first, 0), first))

    def read(self, pending: Pending, tangents: Sequence[Any]) -> frozenset[int]:
        """List the gradients that came, of those from which a backward may start."""
        came = (number for number, tangent in enumerate(tangents) if isinstance(tangent, torch.Tensor))
        return frozenset(self._program(pending.turn.graph).ends).intersection(came)

    def learn(self, pending: Pending, read: frozenset[int]) -> tuple[int, int]:
        """Note which gradients came; return the form of this backward, and the form to expect next."""
        first, given = pending.first, self._given(pending)
        key = first, pending.before
        self._read[key] = ever = self._read.get(key, read) | read
        now, following = self._of(first, read, given), self._of(first, ever, given)
        if loses_results(self._units.captured[following].graph):
            following = self._of(first, frozenset(self._program(first).ends), given)
        self._next[key] = following
        return now, following

    def _of(self, first: int, read: frozenset[int], given: Sequence[Any]) -> int:
        one = self._program(first)
        if one.read == read:
            return first
        if (first, read) not in self._number:
            assert one.traced_from is not None
            why = f"a loss reads {len(read)} of {len(one.ends)} outputs, not {len(one.read)}"
            add = self._add()
            assert add is not None
            self._number[first, read] = add(one.traced_from(read), given, why)
        return self._number[first, read]

    def _program(self, number: int) -> Program:
        return self._units.captured[number].program

    def _given(self, pending: Pending) -> list[Any]:
        """What the caller gave to a forward: without the constants of its form."""
        return pending.inputs[: len(pending.inputs) - len(self._program(pending.turn.graph).constants)]

    # what is left of a forward, for any form

    def rest(self, pending: Pending, number: int) -> Unit:
        """Find the unit of what is left of a call, for the backward of a form of its graph.

        Raises:
            TightropeError: what the forward dropped cannot be made again.
        """
        try:
            return self._units.rest(number, frozenset(self._live(pending, number)))
        except TightropeError as error:
            if number == pending.turn.graph:
                raise
            raise TightropeError(
                f"a gradient came for an output that no loss read so far, and {error} Run the forward and "
                "the backward again: they are planned for it now."
            ) from None

    def inputs_of_rest(self, unit: Unit, pending: Pending, number: int) -> list[Any]:
        """What is live and read, then what the forward was given.

        Raises:
            TightropeError: some of it has changed.
        """
        live = self._live(pending, number)
        names = [given.name for given in unit.graph.parts[0].inputs]
        found = [live[int(name.removeprefix("live_"))] for name in names if name.startswith("live_")]
        pending.check_inputs(unit.graph, len(found))
        return [*found, *self._given(pending), *self._program(number).constants]

    def _live(self, pending: Pending, number: int) -> dict[StorageId, torch.Tensor]:
        """What the forward left, by storage of a form of its graph."""
        live, ran = pending.live(), pending.turn.graph
        if number == ran:
            return live
        if (ran, number) not in self._same:
            graphs = (self._units.captured[form].graph for form in (ran, number))
            self._same[ran, number] = same_storages(*graphs)
        same = self._same[ran, number]
        return {same[storage]: tensor for storage, tensor in live.items() if storage in same}
