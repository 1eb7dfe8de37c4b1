"""One execution of an executable, part by part.

caller:    forward             a loss              backward           optimizer
arena:     [ leased ........ ] [ paused: pages on demand ] [ leased ... ] [ idle: pages on demand ]
limit:     [ on, always ............................................................. ]

A part that allocates otherwise than planned still ends right, from the heap under the same limit.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import torch

from tightrope.capture._guards import lies_apart
from tightrope.core import Bytes, Graph, Nanoseconds, StorageId, TightropeError, View
from tightrope.lower import Groups
from tightrope.lower.join import Turn
from tightrope.lower.remainder import can_go
from tightrope.native.hook.allocator import Allocator, Divergence
from tightrope.price.device import warm_up
from tightrope.run.base.sharded import SHARD_OF, version_of
from tightrope.run.execute.check import RecomputeCheck
from tightrope.run.execute.emit import Code
from tightrope.run.execute.prepared import Prepared, Span
from tightrope.run.execute.reference import Reference
from tightrope.run.ledger.accounts import Accounts, Observation
from tightrope.run.ledger.arenas import Arenas
from tightrope.run.ledger.kept_pages import freed_by

_Result = TypeVar("_Result")
_VERSION: Final = attrgetter("_version")
_ADDRESS: Final = torch.Tensor.data_ptr


def versions_of(tensors: list[Any]) -> list[tuple[int, int]]:
    """What `version_of` says of each of many values; in C where all are tensors and none is gathered."""
    if not SHARD_OF.data:
        try:
            return list(zip(map(_VERSION, tensors), map(_ADDRESS, tensors), strict=True))
        except AttributeError:  # a number
            pass
    return [version_of(tensor) for tensor in tensors]


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
        self._unannounced: tuple[list[Any], list[tuple[int, int]]] = [], []
        self._num_unannounced: list[int] = []
        self._droppable: tuple[frozenset[StorageId], Bytes] | None = None
        self.done: Callable[[Pending], None] = lambda _: None
        self._visible = running.prepared.code.visible[part]
        found = versions_of([*inputs, *map(kept.__getitem__, self._visible)])
        self._given, self._versions = found[: len(inputs)], found[len(inputs) :]

    def wrote(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that the call itself changed tensors: others in their memory are as the forward left them.

        Tensors of one memory may have one version, which rises with a change of any.
        """
        kept = self.kept
        if kept is None:
            return
        for position, at in enumerate(self._visible):
            if lies_apart(kept[at], tensors):
                self._versions[position] = version_of(kept[at])
        for position, one in enumerate(self.inputs):
            if lies_apart(one, tensors):
                self._given[position] = version_of(one)

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

    def resume(self) -> bool:
        """Take the arena of the expected backward again; False where something else has to be run."""
        back = Turn(self.turn.call, self.turn.graph, True)
        if self.dropped or self.num_backwards or not self.running.expects(back):
            return False
        try:
            self.running.resume()
        except torch.OutOfMemoryError:  # the caller holds more than was foreseen: plan for what is left
            return False
        return True

    def begin_backward(self) -> list[Any]:
        """Hand over what the forward kept."""
        kept, self.kept = self.kept, None
        assert kept is not None
        self.num_backwards += 1
        return kept

    def begin_groups(self, kept: list[Any], tangents: list[Any], groups: Groups) -> None:
        """Begin the backward, so that each call of `run_group` hands a group of gradients over."""
        number_of = {id(self.inputs[one]): number for number, group in enumerate(groups) for one in group}
        mine = zip(self._visible, self._versions, strict=True)
        known = ((id(kept[at]), kept[at], version) for at, version in mine)
        found = sorted(
            ((number_of[key], tensor, version) for key, tensor, version in known if key in number_of),
            key=lambda one: one[0],
        )
        self._unannounced = [tensor for _, tensor, _ in found], [version for _, _, version in found]
        of_group = Counter(number for number, _, _ in found)
        self._num_unannounced = [of_group[number] for number in range(len(groups))]
        self.running.begin_groups(kept, tangents, groups)

    def run_group(self) -> tuple[list[Any], list[Any], Observation]:
        """Go on with the backward up to the next group; see `Running.run_group`.

        Raises:
            TightropeError: an input whose gradient has yet to come has changed.
        """
        tensors, versions = self._unannounced
        if versions_of(tensors) != versions:
            raise TightropeError(_CHANGED)
        num = self._num_unannounced.pop(0)
        del tensors[:num], versions[:num]
        return self.running.run_group()

    def token(self) -> torch.Tensor:
        """Make an empty tensor on which it hangs."""
        token = torch.empty(0)
        token.pending = self  # type: ignore[attr-defined]
        return token

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
        kept = [self.kept[position] for position in self._visible]
        if versions_of(kept) != self._versions:
            mine = zip(kept, versions_of(kept), self._versions, strict=True)
            if any(tensor is not None and now != version for tensor, now, version in mine):
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
    "or change a clone. fully_shard gives parameters other memory too: there call tightrope.compile(model, "
    "budget=...) in place of torch.compile."
)


class Running:
    """An execution under way; state of the runtime, used from one thread at a time.

    Attributes:
        prepared: what runs.
        turns: what the caller is expected to do, one per part.
        position: part that comes next.
        off: whether the caller did something else: later parts do not run at planned addresses.
        open: calls whose backward has yet to come.
        arena: that it was given; None = none, or it was given back.
        divergences: allocations that did not go as planned.
        held: bytes that everything else held when it was planned.
        storages: (call, storage of its own graph) -> storage, where several calls run together; else empty.
        peak: largest number of live bytes of its own so far.
        charged: largest number of bytes charged so far, the caller's code between parts included.
        left_arena: whether the caller took the room of its arena in the middle of a part.
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
        source: Graph | None = None,
    ) -> None:
        self.prepared, self.turns, self.accounts, self.held = prepared, turns, accounts, held
        self.storages = storages or {}
        self.position = 0
        self.off = False
        self.open: weakref.WeakSet[Pending] = weakref.WeakSet()
        self.divergences: list[Divergence] = []
        self.left_arena = False
        self.peak: Bytes = prepared.proof.peak if accounts.allocator is None else 0
        self.charged: Bytes = 0
        self._is_timed = next(prepared.times.timed)
        self._spent: tuple[Nanoseconds, Nanoseconds] = (0, 0)
        self._arenas, self.arena = arenas, arena
        self._reached = 0 if arena is not None else -1
        self._profiled = accounts.allocator is None and not prepared.proof.checked  # slow, so once
        self._check: RecomputeCheck | None = None
        self._code: Code = prepared.code
        self._groups: Iterator[list[Any]] | None = None
        self._spans: list[Span] = []
        self._reference: Reference | None = None
        if verify is not None and not prepared.proof.checked:
            self._code, self._check = prepared.watched()
            if verify == "graph":
                tolerant = bool(prepared.plan.stretches) or source is not None
                self._reference = Reference(source or prepared.graph, accounts, tolerant=tolerant)

    @property
    def over(self) -> bool:
        """Whether no part is left, or none will come."""
        return self.position == len(self.turns) or self.off

    @property
    def was_free(self) -> bool:
        """Whether one call was planned by itself and nothing was computed again: no plan is faster."""
        forecast = self.prepared.plan.forecast
        return len(self.turns) <= 2 and not self.off and forecast.ns == forecast.base_ns

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
        (outputs, rest), seen = self._run_span(
            partial(self._code.parts[part], kept, given), self.prepared.spans[part]
        )
        if self._reference is not None:
            self._reference.after(part, outputs)
        self._end_part()
        return outputs, rest, seen

    def can_announce(self, groups: Groups) -> bool:
        """Tell whether the next part may announce gradients in groups: not one checked, recorded or paged."""
        outputs = self.prepared.graph.parts[self.position].outputs
        made = {position for position, value in enumerate(outputs) if isinstance(value, View)}
        watched = self._check is not None or self._profiled or not self.prepared.times.plain
        return not watched and made.issubset(chain.from_iterable(groups))

    def begin_groups(self, kept: list[Any], given: list[Any], groups: Groups) -> None:
        """Begin the next part, a backward, so that each call of `run_group` hands a group of gradients over.

        Args:
            kept: see `run`.
            given: see `run`.
            groups: of its outputs, in order.
        """
        code, spans = self.prepared.in_groups(self.position, groups)
        self._spans, self._groups = list(spans), cast(Iterator[list[Any]], code(kept, given))

    def run_group(self) -> tuple[list[Any], list[Any], Observation]:
        """Go on up to the next group of gradients.

        Returns:
            Outputs, None for those of other groups; nothing; and what was observed.

        Raises:
            torch.OutOfMemoryError: a kernel's bytes are not to be had, or those that the arena gave back.
        """
        groups = self._groups
        assert groups is not None
        span = self._spans.pop(0)
        try:
            self.resume()
        except torch.OutOfMemoryError:  # the caller holds more than was foreseen: go on from the heap
            self._reached, self.left_arena = -1, True
        outputs, seen = self._run_span(lambda: _next(groups), span)
        outputs += [None] * (len(self.prepared.graph.parts[self.position].outputs) - len(outputs))
        if self._spans:
            self._pause()
        else:
            self._groups = None
            self._end_part()
        return outputs, [], seen

    @property
    def in_groups(self) -> bool:
        """Whether groups of gradients are left."""
        return self._groups is not None

    def _run_span(self, code: Callable[[], _Result], span: Span) -> tuple[_Result, Observation]:
        allocator = self.accounts.allocator
        if allocator is None or self.arena is None or self._reached != span.start:
            with self.accounts.observed(profiled=self._profiled, held=span.live) as seen:
                result = self._timed(code) if self._is_timed else code()
        else:
            result, seen = self._served(allocator, self.arena, code, span)
        self.peak = max(self.peak, span.live + seen.above)
        self.prepared.proof.peak = max(self.prepared.proof.peak, self.peak)
        self.charged = max(self.charged, seen.before if self.position else 0, seen.charged)
        return result, seen

    def _end_part(self) -> None:
        self.position += 1
        if self._check is not None:
            reference = "" if self._reference is None else str(self._reference)
            over = self.position == len(self.turns)
            self.prepared.proof.note(self._check, reference, self.position, over=over)
        elif self._is_timed and self.position == len(self.turns) and not (self._profiled or self.divergences):
            self.prepared.times.ran(*self._spent)
        if self.position < len(self.turns) and not self.off:
            self._pause()

    def _timed(self, code: Callable[[], _Result]) -> _Result:
        """Run code and add up what it takes, by the clock of the prices and by the wall's."""
        _, clock = self.prepared.clock
        wall, start = time.perf_counter_ns(), clock()
        result = code()
        spent, waited = self._spent
        self._spent = spent + clock() - start, waited + time.perf_counter_ns() - wall
        return result

    def _served(
        self, allocator: Allocator, arena: int, code: Callable[[], _Result], span: Span
    ) -> tuple[_Result, Observation]:
        """Run code at planned addresses."""
        seen, reached = Observation(), -1
        if allocator.index >= 0:
            warm_up(self.accounts.device)
        start = allocator.begin_span(arena, self.prepared.table, start=span.start)
        try:
            result = self._timed(code) if self._is_timed else code()
            reached = span.end
        finally:
            end, now = allocator.end_span()
            self.accounts.saw(seen, start, now)
            if (found := end.divergence) is None and end.reached < reached:
                found = Divergence(end.reached, 0, 0, "short", 0)
            if found is not None:
                self.divergences.append(found)
            if found is not None or reached >= 0:
                self._reached = -1 if found is not None else end.reached
        return result, seen

    def resume(self) -> None:
        """Take the arena again before a part that is not the first.

        Raises:
            torch.OutOfMemoryError: what it gave back no longer fits under the limit.
        """
        if self.arena is not None and self.position and self._arenas is not None:
            self._arenas.resume(self.arena)

    def leave(self) -> None:
        """Note that the caller did something else than expected."""
        self.off = True
        self._groups = None
        self._pause()

    def _pause(self) -> None:
        """Let the free pages of the arena go where the limit needs them; blocks in it stay."""
        if self.arena is not None and self._arenas is not None:
            self._arenas.allocator.idle(self.arena)

    def trim(self) -> None:
        """Give back the pages that hold nothing, until the next part."""
        if self.arena is not None and self._arenas is not None and self.position:
            self._arenas.trim(self.arena)

    def close(self) -> None:
        """Give the arena back, once; blocks in it that the caller holds stay where they are."""
        self._groups = None
        arena, self.arena = self.arena, None
        if arena is not None and self._arenas is not None:
            self._arenas.finish(arena, retire=bool(self.divergences))


def _next(groups: Iterator[list[Any]]) -> list[Any]:
    """What a generator yields, or the outputs among what it returns."""
    try:
        return next(groups)
    except StopIteration as end:
        outputs: list[Any] = end.value[0]
        return outputs
