"""L0: run any training loop whose allocations repeat at planned addresses, under a hard limit.

Idea        Two steps warm up, one is recorded, every allocation of it that also died in it gets an
            address in one arena, and from then on the k-th allocation is served from there.
            What outlives the recorded step (gradients, outputs, optimizer state) stays on the heap.
Guarantee   Bytes charged never exceed the budget, from the first step on: an allocation that would
            is refused with torch.OutOfMemoryError before memory is touched. A live block is never
            overwritten, and results are those of the loop without it, bit for bit.
Complexity  One placement per recording; per allocation O(log live blocks).
Gaps        Gradients outlive the step that made them, so their bytes add to the arena even at
            moments when they are dead. There is one plan at a time: batches of changing shapes
            record again at each change. What kernels take behind torch's CPU allocator is seen in the
            steps before a replay and held back from then on: a first step that takes more than the
            budget with it is refused when it has run. What else allocates (numpy, files) is not counted.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from types import TracebackType
from typing import Final, Literal

import torch

from tightrope.core import (
    BudgetSyntaxError,
    Buffer,
    Bytes,
    Offset,
    TightropeError,
    Trace,
    parse_bytes,
    round_up,
)
from tightrope.core.arguments import check_count, check_seconds
from tightrope.core.ledger import Ledger, Row, Since
from tightrope.native.hook.allocator import Allocator, Divergence, MemoryEvent, ReplayEnd
from tightrope.place import place
from tightrope.price.measure import UNSEEN
from tightrope.price.profiler import changes_of, cpu_profile, start_profile
from tightrope.run.base.status import StatusLine, build_native
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import FIRST_TRY, HIDDEN, RESERVE
from tightrope.run.ledger.uncounted import uncounted_bytes

Phase = Literal["warm-up", "record", "replay"]

_LONGEST_WAIT: Final = 64
"""Largest number of steps to wait for steady shapes, after recordings that did not repeat."""


def replay(
    budget: str | Bytes, *, external: Bytes | None = None, warmup: int = 2, seconds: float = 1.0
) -> "Replay":
    """Hold a training loop to a memory budget, without capturing it.

    Args:
        budget: bytes for everything on the CPU during a step: ``"300MiB"``, ``314572800``.
        external: bytes of the budget that belong to tensors made before the allocator was
            installed; None = measure them (see `uncounted_bytes`).
        warmup: steps before the one that is recorded.
        seconds: longest time to spend on one placement.

    Returns:
        A context manager to use around every step.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        InfeasibleError: what exists already is larger than the budget.
        TightropeError: another argument is wrong.
        NativeError: there is a C++ compiler, but it could not build the allocator.

    Example:
        >>> guard = replay("300MiB")  # doctest: +SKIP
        >>> for batch in data:  # doctest: +SKIP
        ...     with guard:
        ...         train_step(batch)
    """
    return Replay(budget, external=external, warmup=warmup, seconds=seconds)


class Replay:
    """The context manager made by `replay`.

    Attributes:
        level: always ``L0``.
        enforced: whether the limit is hard; False without the native part.
        note: one sentence on what holds, and why not more.
        budget: total bytes asked for.
        external: bytes of it taken by tensors that the allocator does not count.
        phase: what the next step is for: ``warm-up``, ``record`` or ``replay``.
        steps: steps finished without an exception.
        hits: allocations served as planned, over all replayed steps.
        misses: planned allocations that were not, over all replayed steps.
        outside_bytes: bytes served from the heap because a replay had diverged, over all steps.
        persistent: bytes held when the last step began, ``external`` included.
        arena: bytes of the arena, 0 before there is a plan.
        hidden: most bytes that kernels were seen to take behind torch's allocator; 0 = at most `UNSEEN`.
        live_peak: largest number of live bytes in the last step, ``external`` included.
        charged_peak: largest number of bytes held against the budget in the last step; without a
            C++ compiler, the largest live bytes seen.
        most_charged: the same, in any step.
        forecast_peak: live bytes of the step that is repeated at planned addresses; 0 = none is.
        divergence: the last one, or None.
        trace: allocations of the last recorded step with their offsets, or None before it.
    """

    level: Final = "L0"

    def __init__(
        self, budget: str | Bytes, *, external: Bytes | None = None, warmup: int = 2, seconds: float = 1.0
    ) -> None:
        if isinstance(budget, str) and budget.strip().endswith("%"):
            raise BudgetSyntaxError(
                f"budget {budget[:64]!r}: replay takes no percentages: what a step needs is known only after "
                'some ran. Write bytes, such as "300MiB"; tightrope.compile and tightrope.step take "60%".'
            )
        self.budget = parse_bytes(budget)
        if external is not None:
            check_count("external", external)
        check_count("warmup", warmup)
        check_seconds("seconds", seconds, zero=True)
        build_native(StatusLine())
        self._accounts = accounts()
        self._allocator: Allocator | None = self._accounts.allocator
        self.enforced = self._allocator is not None
        self.note = self._accounts.note or "enforced by the allocator"
        hook = self._allocator
        uncounted = uncounted_bytes(hook.owns if hook is not None else None) if external is None else external
        self.external = uncounted
        if self.external > self.budget:
            least = self._accounts.enough.keeping or FIRST_TRY * self.external
            ledger = Ledger(self.budget, (Row("tensors that exist", self.external),), least)
            raise ledger.explain(Row("the step", 0), bound=self.external, instead="a smaller model")
        self.phase: Phase = "warm-up" if warmup > 0 else "record"
        self.steps = self.hits = self.misses = self.outside_bytes = self.arena = 0
        self.live_peak = self.charged_peak = self.most_charged = self.hidden = self.forecast_peak = 0
        self.persistent = self.external
        self.divergence: Divergence | None = None
        self.trace: Trace | None = None
        self._wait, self._seconds = warmup, seconds
        self._num_failures = self._charged_before = 0
        self._inside = False
        self._arena_id = self._plan_id = 0
        self._sizes: tuple[Bytes, ...] = ()
        self._limit: ExitStack = ExitStack()
        self._counting = False
        self._meter: _AllocationMeter | None = None

    def __enter__(self) -> "Replay":
        if self._inside:
            raise TightropeError("this replay is inside a step already; leave its `with` block first.")
        if self._allocator is None:
            self._meter = _AllocationMeter(self.external) if self.phase != "replay" else None
            self.persistent = self._meter.before if self._meter is not None else self.persistent
        else:
            self._begin(self._allocator)
        self._inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._inside = False
        finished = kind is None
        self.steps += finished
        if self._allocator is not None:
            self._end(self._allocator, finished=finished)
        elif self._meter is not None:
            peak, self._meter = self._meter.stop(), None
            if finished:
                self._check(peak)

    def close(self) -> None:
        """Give the arena back; the next step records again."""
        if self._allocator is not None and self._plan_id:
            self._forget(self._allocator)
            self.phase = "record"

    # with the allocator

    def _begin(self, native: Allocator) -> None:
        limit = max(self.budget - self.external - self._accounts.hidden, 0)
        self._limit.enter_context(self._accounts.limited(limit))
        native.reset_peaks()
        self.persistent = self.external + native.stats().live
        if self.phase != "replay" and native.attach_hidden():
            native.begin_hidden()
            self._counting = True
        try:
            if self.phase == "replay" and self._lease(native):
                native.begin_replay(self._arena_id, self._plan_id)
            elif self.phase == "record":
                self._charged_before = native.stats().charged
                native.begin_record()
        except BaseException:
            self._count(native)
            self._limit.close()
            raise

    def _lease(self, native: Allocator) -> bool:
        """Take the arena, or a fresh one if a tensor in it is still alive; if neither fits, record again."""
        try:
            if not native.lease(self._arena_id):
                native.retire(self._arena_id)
                self._arena_id = 0
                self._arena_id = native.open_arena(self.arena)
        except torch.OutOfMemoryError:
            self._forget(native)
            self.phase = "record"
        return self.phase == "replay"

    def _end(self, native: Allocator, *, finished: bool) -> None:
        self._limit.close()
        stats = native.stats()
        self.live_peak = self.external + stats.live_peak
        self.charged_peak = self.external + stats.charged_peak
        self.most_charged = max(self.most_charged, self.charged_peak)
        self._count(native)
        if self.phase == "replay":
            self._end_replay(native, native.end_replay(), finished=finished)
        elif self.phase == "record":
            events = native.end_record()
            if finished:
                self._check_hidden()
                self._plan(native, events.events, events.buffers())
        elif finished:
            self._check_hidden()
            self._wait -= 1
            self.phase = "warm-up" if self._wait > 0 else "record"

    def _end_replay(self, native: Allocator, end: ReplayEnd, *, finished: bool) -> None:
        self.hits += end.reached
        divergence = end.divergence
        if divergence is None and finished and end.reached < len(self._sizes):
            divergence = Divergence(end.reached, self._sizes[end.reached], 0, "short", 0)
        if divergence is None:
            native.idle(self._arena_id)
            self._num_failures = 0 if finished else self._num_failures
            return
        self.divergence = divergence
        self.misses += max(len(self._sizes) - end.reached, 1)
        self.outside_bytes += divergence.outside
        self._forget(native)
        # A loop that never repeats must not pay for a placement at every step.
        self._wait = min(2**self._num_failures, _LONGEST_WAIT) - 1
        self._num_failures += 1
        self.phase = "warm-up" if self._wait > 0 else "record"

    def _plan(self, native: Allocator, events: Sequence[MemoryEvent], buffers: Sequence[Buffer]) -> None:
        """Place what died in the recorded step, check the sum against the budget, open the arena."""
        offsets, arena = _offsets(buffers, len(events), self._seconds)
        self.trace = Trace(
            "observed",
            tuple(
                Buffer(b.bytes, b.start, b.end, offset) for b, offset in zip(buffers, offsets, strict=True)
            ),
            num_events=len(events),
        )
        outside = _heap_peak(self._charged_before, events, offsets)
        ledger = self._ledger(Row("from before", self.external), Row("outside the arena", outside))
        if ledger.room() < arena:
            raise ledger.explain(
                Row("planned addresses", arena, "forecast"),
                bound=self.charged_peak,
                instead="more seconds for the placement, or a smaller batch",
            )
        self.arena, self._sizes = arena, tuple(buffer.bytes for buffer in buffers)
        self._plan_id = native.register_plan(self._sizes, offsets)
        self._arena_id = native.open_arena(arena)
        native.idle(self._arena_id)
        self.forecast_peak = self.live_peak
        self.phase = "replay"

    def _count(self, native: Allocator) -> None:
        """Note what kernels took; what they keep, such as code, is no part of it."""
        if self._counting:
            self._counting = False
            found = native.end_hidden()
            taken = found.peak - max(found.left, 0)
            self.hidden = max(self.hidden, taken if taken > UNSEEN else 0)
            self._accounts.hold_back(self, self.hidden)

    def _check_hidden(self) -> None:
        """Refuse a budget that a step kept to, but not together with what its kernels took."""
        ledger = self._ledger(least=self._accounts.enough.keeping + self.hidden)
        if self.hidden and ledger.room() < self.charged_peak:
            raise ledger.explain(Row("the step", self.charged_peak))

    def _ledger(self, *rows: Row, least: Bytes = 0) -> Ledger:
        """Share the budget with what kernels take; a budget that is named has room for the runtime, too."""
        hidden = Row(HIDDEN, self._accounts.hidden, source="outside torch's allocator")
        reserve = Row("runtime reserve", RESERVE, since=Since.LATER)
        return Ledger(self.budget, least=max(least, self._accounts.enough.keeping)).plus(
            *rows, hidden, reserve
        )

    def _forget(self, native: Allocator) -> None:
        if self._arena_id:
            native.retire(self._arena_id)
        native.drop_plan(self._plan_id)
        self._arena_id = self._plan_id = self.arena = self.forecast_peak = 0

    # without it

    def _check(self, peak: Bytes) -> None:
        self.live_peak = self.charged_peak = self.most_charged = peak
        self._wait -= 1
        # The first steps show the peak; measuring the later ones would only slow them down.
        self.phase = "warm-up" if self._wait > 0 else "record" if self._wait == 0 else "replay"
        if peak > self.budget:
            raise Ledger(self.budget).explain(
                Row("the step", peak), instead="a smaller batch", notes=[f"The budget is {self.note}."]
            )


def _offsets(buffers: Sequence[Buffer], num_events: int, seconds: float) -> tuple[tuple[Offset, ...], Bytes]:
    """Place the buffers that die before the end; the others get -1. Also return the arena's bytes."""
    inside = [k for k, buffer in enumerate(buffers) if buffer.end < num_events]
    offsets = [-1] * len(buffers)
    blocks = [(round_up(buffers[k].bytes), buffers[k].start, buffers[k].end) for k in inside]
    placement = place(blocks, seconds=seconds)
    for k, offset in zip(inside, placement.offsets, strict=True):
        offsets[k] = offset
    return tuple(offsets), placement.peak


def _heap_peak(before: Bytes, events: Sequence[MemoryEvent], offsets: Sequence[Offset]) -> Bytes:
    """Replay the recorded step without its planned blocks: the largest number of bytes charged outside."""
    now = peak = before
    for event in events:
        if event.allocation >= 0 and offsets[event.allocation] >= 0:
            continue
        now += round_up(event.bytes) if event.kind == "alloc" else -round_up(event.bytes)
        peak = max(peak, now)
    return peak


class _AllocationMeter:
    """Measure the peak of one step from the profiler's memory events."""

    def __init__(self, external: Bytes) -> None:
        self.before = max(external, uncounted_bytes(None))
        self._profile = cpu_profile()
        start_profile(self._profile)

    def stop(self) -> Bytes:
        """Return the largest number of live bytes, what existed before included."""
        self._profile.stop()
        return max(accumulate(changes_of(self._profile), initial=self.before))
