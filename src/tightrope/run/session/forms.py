"""The forms of captured graphs: one forward, and a backward from the gradients that come.

Idea        A model may return more than its loss: logits, hidden states, a cache. Eager runs no backward
            from an output that no loss reads, so neither does a plan: a backward is traced from the
            gradients that came, laid out as they came, and the next call is planned with it.
Guarantee   Gradients are those of the ops that eager runs. What was read once is counted as read from then
            on; a backward from fewer outputs, or from others, is made from what the forward left.
Gaps        Where an output is read that never was, and the forward read tensors that have changed since,
            that backward is refused; the next step is planned for it. A gradient whose elements overlap, as
            that of a sum, is copied to the layout of its output.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakMethod

import torch

from tightrope.capture.program import Arrived, Program
from tightrope.core import StorageId, TightropeError, View
from tightrope.lower.remainder import loses_results, same_storages
from tightrope.run.execute.running import Pending
from tightrope.run.session.unit import Unit
from tightrope.run.session.units import Units


class Forms:
    """Which form of a captured graph is expected next; state of the runtime, used from one thread at a time.

    Args:
        units: with the captured graphs; every form has a number of its own.
        add: a method; takes a new form in, given inputs and the cause of its first plan; returns its number.

    Attributes:
        following: (number of a graph as captured, calls of it that are pending) -> its form in the next call.
    """

    def __init__(self, units: Units, add: Callable[[Program, Sequence[Any], str], int]) -> None:
        self._units, self._add = units, WeakMethod(add)
        self._number: dict[tuple[int, Arrived], int] = {}
        self._read: dict[tuple[int, int], frozenset[int]] = {}
        self.following: dict[tuple[int, int], int] = {}
        self._now: dict[tuple[int, int], int] = {}
        self._learned: dict[tuple[int, int], tuple[Arrived, frozenset[int]]] = {}
        self._same: dict[tuple[int, int], dict[StorageId, StorageId]] = {}

    def expected(self, first: int, before: int = 0) -> int:
        """The form of a graph that its next forward is planned with.

        Args:
            first: number of the graph as it was captured.
            before: calls of it that are pending.
        """
        return self.following.get((first, before), self.following.get((first, 0), first))

    def arrived(self, pending: Pending, tangents: Sequence[Any]) -> Arrived:
        """Describe the gradients that came, of those from which a backward may start."""
        came = (number for number, tangent in enumerate(tangents) if isinstance(tangent, torch.Tensor))
        program = self._program(pending.first)
        read = frozenset(program.ends).intersection(came)
        layouts = (
            (number, tangents[number].stride())
            for number in sorted(read)
            if _is_otherwise(tangents[number], program.strides[number]) and _is_dense(tangents[number])
        )
        return Arrived(read, tuple(layouts))

    def learn(self, pending: Pending, came: Arrived) -> tuple[int, int]:
        """Note which gradients came; return the form of this backward, and the form to expect next."""
        first = pending.first
        key = first, pending.before
        self._read[key] = ever = self._read.get(key, came.read) | came.read
        if self._learned.get(key) == (came, ever):
            return self._now[key], self.following[key]
        given = self._given(pending)
        now, following = self._of(first, came, given), self._of(first, replace(came, read=ever), given)
        every = frozenset(self._program(first).ends)
        if ever < every and self._loses(following):
            following = self._of(first, replace(came, read=every), given)
        self.following[key], self._now[key], self._learned[key] = following, now, (came, ever)
        return now, following

    def _loses(self, number: int) -> bool:
        """Tell whether a backward from other outputs may want what the forward leaves no way to make."""
        return not self._program(number).covers and loses_results(self._units.captured[number].graph)

    def _of(self, first: int, start: Arrived, given: Sequence[Any]) -> int:
        one = self._program(first)
        if one.start == start:
            return first
        if (first, start) not in self._number:
            assert one.traced_from is not None
            why = f"a loss reads {len(start.read)} of {len(one.ends)} outputs, not {len(one.start.read)}"
            if one.start.read == start.read:
                why = "a gradient came that is laid out otherwise than its output"
            add = self._add()
            assert add is not None
            self._number[first, start] = add(one.traced_from(start), given, why)
        return self._number[first, start]

    def laid_out(self, number: int, tangents: list[Any]) -> None:
        """Copy gradients that are not laid out as a form of a graph reads them."""
        for end, strides in self._program(number).strides.items():
            came = tangents[end]
            if isinstance(came, torch.Tensor) and came.stride() != strides:
                tangents[end] = came.new_empty_strided(came.shape, strides).copy_(came)

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
                f"a gradient came for an output that no loss read so far: {error} Run the forward and "
                "the backward again. They are planned for it now."
            ) from None

    def inputs_of_rest(self, unit: Unit, pending: Pending, number: int) -> list[Any]:
        """What is live and read, then what the forward was given.

        Raises:
            TightropeError: some of it has changed.
        """
        live = self._live(pending, number)
        found = [
            _seen_as(live[int(given.name.removeprefix("live_"))], given.view)
            for given in unit.graph.parts[0].inputs
            if given.name.startswith("live_") and given.view is not None
        ]
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


def _seen_as(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """Look at a buffer as what was made last in it: that may have been written over another shape."""
    same = (tuple(tensor.shape), tuple(tensor.stride())) == (view.shape, view.strides)
    return tensor if same else tensor.as_strided(view.shape, view.strides)


def _is_otherwise(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Tell whether the elements of a tensor are laid out otherwise than these strides say."""
    return any(
        size > 1 and mine != step
        for size, mine, step in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a permutation of one without gaps."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True
