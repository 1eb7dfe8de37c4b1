"""One execution of an executable, part by part.

caller:    forward             a loss              backward           optimizer
arena:     [ leased ........ ] [ paused: pages on demand ] [ leased ... ] [ idle: pages on demand ]
limit:     [ on, always ............................................................. ]

A part that allocates otherwise than planned still ends right, from the heap under the same limit.
"""

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tightrope.core import Bytes, Graph, Nanoseconds, StorageId, TightropeError
from tightrope.lower.join import Turn
from tightrope.lower.remainder import can_go
from tightrope.native.hook.allocator import Divergence
from tightrope.run.accounts import Accounts, Observation
from tightrope.run.arenas import Arenas
from tightrope.run.check import RecomputeCheck
from tightrope.run.emit import Code
from tightrope.run.pages import freed_by
from tightrope.run.prepared import Prepared
from tightrope.run.reference import Reference


class Pending:
    """A forward whose backward has yet to come; it hangs on the autograd graph and dies with it.

    Attributes:
        running: the execution that the forward was a part of.
        turn: its forward there.
        call: its number among the calls of the unit.
        part: of the executable.
        kept: tensors that the backward needs; None when it ran and they are gone.
        inputs: what the forward was given.
        num_backwards: that ran.
        dropped: whether part of what was kept was given up for room.
        calls: what runs its backward.
        first: number of its graph as it was captured, in whatever form it runs.
        before: calls of that graph that were pending when it ran.
        done: called once, when nothing can come of it any more.
        watch: what compares its gradients, or None.
    """

    calls: Any = None
    first: int = 0
    before: int = 0
    watch: Any = None

    def __init__(
        self, running: "Running", turn: Turn, call: int, part: int, kept: list[Any], inputs: list[Any]
    ) -> None:
        self.running, self.turn, self.call, self.part = running, turn, call, part
        self.kept: list[Any] | None = kept
        self.inputs = inputs
        self.num_backwards = 0
        self.dropped = False
        self._droppable: tuple[frozenset[StorageId], Bytes] | None = None
        self.done: Callable[[Pending], None] = lambda _: None
        self._visible = running.prepared.code.visible[part]
        self._versions = [version_of(kept[position]) for position in self._visible]
        self._given = [version_of(tensor) for tensor in inputs]

    def finish(self) -> None:
        """Say, once, that it is over."""
        done, self.done = self.done, lambda _: None
        done(self)

    def failed(self) -> None:
        """Say that it is over where its tensors went with a backward that failed: autograd may hold it on."""
        if self.kept is None:
            self.finish()

    def __del__(self) -> None:
        self.finish()

    def live(self) -> dict[StorageId, torch.Tensor]:
        """What the forward left, by storage of its own graph."""
        assert self.kept is not None
        return {
            storage: tensor
            for storage, tensor in zip(self._storages(), self.kept, strict=True)
            if storage >= 0 and tensor is not None
        }

    def droppable(self, graph: Graph) -> tuple[frozenset[StorageId], Bytes]:
        """Storages of the graph of the call alone that can be computed again, and the bytes they free."""
        if self.dropped or self.kept is None:
            return frozenset(), 0
        if self._droppable is None:
            live = self.live()
            gone = can_go(graph, frozenset(live))
            goes = [tensor for storage, tensor in live.items() if storage in gone]
            stays = [tensor for storage, tensor in live.items() if storage not in gone]
            self._droppable = gone, freed_by(goes, stays)
        return self._droppable

    def drop(self, graph: Graph) -> bool:
        """Give up what can be computed again; tell whether there was anything.

        Args:
            graph: of the call alone.
        """
        gone, _ = self.droppable(graph)
        if not gone or self.kept is None:
            return False
        self.dropped = True
        for position, storage in enumerate(self._storages()):
            if storage in gone:
                self.kept[position] = None
        self.running.leave()
        self.running.trim()
        return True

    def _storages(self) -> list[StorageId]:
        """For every kept tensor, the storage in the graph of the call alone; -1 for those of the caller."""
        prepared, joint = self.running.prepared, self.running.storages
        mine = {there: here for (call, here), there in joint.items() if call == self.turn.call}
        buffers = [int(name[1:]) if name[0] == "b" else -1 for name in prepared.code.kept[self.part]]
        found = [prepared.storage_of[buffer] if buffer >= 0 else -1 for buffer in buffers]
        return [mine.get(storage, storage) for storage in found]

    def check(self) -> None:
        """Refuse a backward whose tensors are gone or have changed.

        Raises:
            TightropeError: says which.
        """
        if self.kept is None:
            raise TightropeError("backward ran twice on one forward: pass retain_graph=True to the first.")
        for position, version in zip(self._visible, self._versions, strict=True):
            tensor = self.kept[position]
            if tensor is not None and version_of(tensor) != version:
                raise TightropeError(_CHANGED)

    def check_inputs(self, rest: Graph, skip: int) -> None:
        """Refuse to compute anything again from inputs that have changed.

        Args:
            rest: what is left of the graph; its inputs are ``skip`` tensors, then those of the forward.
            skip: see there.

        Raises:
            TightropeError: one that ``rest`` reads has changed.
        """
        read = {storage for op in rest.all_ops() for storage in op.reads}
        given = rest.parts[0].inputs[skip:]
        for item, tensor, version in zip(given, self.inputs, self._given, strict=False):
            if item.view is not None and item.view.base in read and version_of(tensor) != version:
                raise TightropeError(_CHANGED)


_CHANGED = (
    "a tensor that the backward needs (a parameter, an input or an output of the model) was changed in place "
    "between forward and backward, or given other memory, as by model.bfloat16(): do so after the backward, "
    "or change a clone."
)


class Running:
    """An execution under way; state of the runtime, used from one thread at a time.

    Attributes:
        prepared: what runs.
        turns: what the caller is expected to do, one per part.
        position: part that comes next.
        off: whether the caller did something else: later parts do not run at planned addresses.
        open: calls whose backward has yet to come.
        divergences: allocations that did not go as planned.
        held: bytes that everything else held when it was planned.
        storages: (call, storage of its own graph) -> storage, where several calls run together; else empty.
        peak: largest number of live bytes of its own so far.
        charged: largest number of bytes charged so far, the caller's code between parts included.
    """

    def __init__(
        self,
        prepared: Prepared,
        turns: tuple[Turn, ...],
        accounts: Accounts,
        arenas: Arenas | None,
        arena: int | None,
        *,
        held: Bytes = 0,
        storages: Mapping[tuple[int, StorageId], StorageId] | None = None,
        verify: str | None,
        whole: Graph | None = None,
    ) -> None:
        self.prepared, self.turns, self.accounts, self.held = prepared, turns, accounts, held
        self.storages = storages or {}
        self.position = 0
        self.off = False
        self.open: weakref.WeakSet[Pending] = weakref.WeakSet()
        self.divergences: list[Divergence] = []
        self.peak: Bytes = prepared.proof.peak if accounts.allocator is None else 0
        self.charged: Bytes = 0
        self._spent: tuple[Nanoseconds, Nanoseconds] = (0, 0)
        self._arenas, self._arena = arenas, arena
        self._reached = 0 if arena is not None else -1
        self._profiled = accounts.allocator is None and not prepared.proof.checked  # slow, so once
        self._check: RecomputeCheck | None = None
        self._code: Code = prepared.code
        self._reference: Reference | None = None
        if verify is not None and not prepared.proof.checked:
            self._code, self._check = prepared.watched()
            if verify == "graph":
                tolerant = bool(prepared.plan.stretches) or whole is not None
                self._reference = Reference(whole or prepared.graph, accounts, tolerant=tolerant)

    @property
    def over(self) -> bool:
        """Whether no part is left, or none will come."""
        return self.position == len(self.turns) or self.off

    @property
    def forecast_peak(self) -> Bytes:
        """Largest number of live bytes of its own, as planned; of one that was left, up to there."""
        peaks = self.prepared.peaks
        return max(peaks[: self.position] if self.off else peaks, default=0)

    def expects(self, turn: Turn) -> bool:
        """Tell whether a turn is the next one."""
        return not self.over and self.turns[self.position] == turn

    def run(self, kept: list[Any], given: list[Any]) -> tuple[list[Any], list[Any], Observation]:
        """Run the next part at its planned addresses.

        Args:
            kept: what the part before of this call kept; emptied.
            given: inputs; emptied.

        Returns:
            Outputs, what the next part of the call needs, and what was observed.

        Raises:
            VerificationError: the inline check failed.
            torch.OutOfMemoryError: a kernel's bytes are not to be had.
        """
        part = self.position
        if self._reference is not None:
            self._reference.before(part, given)
        with self.accounts.observed(profiled=self._profiled, held=self.prepared.live[part]) as seen:
            outputs, rest = self._served(part, lambda: self._timed(part, kept, given))
        if self._reference is not None:
            self._reference.after(part, outputs)
        self.position += 1
        self.peak = max(self.peak, self.prepared.live[part] + seen.above)
        self.prepared.proof.peak = max(self.prepared.proof.peak, self.peak)
        self.charged = max(self.charged, seen.before if part else 0, seen.charged)
        if self._check is not None:
            self._note(self._check)
        elif self.position == len(self.turns) and not (self._profiled or self.divergences):
            self.prepared.times.ran(*self._spent)
        if self._arena is not None and not self.over and self._arenas is not None:
            self._arenas.pause(self._arena)
        return outputs, rest, seen

    def _timed(self, part: int, kept: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run the code of a part and add up what it takes, by the clock of the prices and by the wall's."""
        _, clock = self.prepared.clock
        wall, start = time.perf_counter_ns(), clock()
        result = self._code.parts[part](kept, given)
        spent, waited = self._spent
        self._spent = spent + clock() - start, waited + time.perf_counter_ns() - wall
        return result

    def _note(self, check: RecomputeCheck) -> None:
        proof = self.prepared.proof
        proof.num_parts = max(proof.num_parts, self.position)
        proof.num_again, proof.num_results = check.num_again, check.num_results
        proof.fused = str(check.stretches)
        if self._reference is not None:
            proof.reference = str(self._reference)
        if self.position == len(self.turns):
            proof.checked = time.time()

    def _served(
        self, part: int, run: Callable[[], tuple[list[Any], list[Any]]]
    ) -> tuple[list[Any], list[Any]]:
        allocator, start = self.accounts.allocator, self.prepared.starts[part]
        if allocator is None or self._arena is None or self._reached != start:
            return run()
        allocator.begin_replay(self._arena, self.prepared.table, start=start)
        try:
            result = run()
        except BaseException:
            self._diverged(allocator.end_replay().divergence)
            raise
        end = allocator.end_replay()
        self._reached = end.reached
        if end.divergence is not None:
            self._diverged(end.divergence)
        elif end.reached < self.prepared.starts[part + 1]:
            self._diverged(Divergence(end.reached, 0, 0, "short", 0))
        return result

    def _diverged(self, divergence: Divergence | None) -> None:
        if divergence is not None:
            self.divergences.append(divergence)
            self._reached = -1

    def resume(self) -> None:
        """Take the arena again before a part that is not the first.

        Raises:
            torch.OutOfMemoryError: what it gave back no longer fits under the limit.
        """
        if self._arena is not None and self.position and self._arenas is not None:
            self._arenas.resume(self._arena)

    def leave(self) -> None:
        """Note that the caller did something else than expected."""
        self.off = True
        if self._arena is not None and self._arenas is not None:
            self._arenas.pause(self._arena)

    def trim(self) -> None:
        """Give back the pages that hold nothing, until the next part."""
        if self._arena is not None and self._arenas is not None and self.position:
            self._arenas.trim(self._arena)

    def close(self) -> None:
        """Give the arena back, once; blocks in it that the caller holds stay where they are."""
        arena, self._arena = self._arena, None
        if arena is not None and self._arenas is not None:
            self._arenas.finish(arena, retire=bool(self.divergences))


def version_of(tensor: Any) -> tuple[int, int]:
    """The version of a tensor, which rises with every change in place, and where its memory is."""
    return (int(tensor._version), tensor.data_ptr()) if isinstance(tensor, torch.Tensor) else (0, 0)
