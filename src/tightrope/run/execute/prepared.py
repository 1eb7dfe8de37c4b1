"""A plan made ready to run: lowered, judged, compiled, its addresses registered. Nothing else is run."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from tightrope.core import (
    Alloc,
    Announce,
    Bytes,
    Executable,
    Graph,
    Instruction,
    Machine,
    Nanoseconds,
    Plan,
    Release,
    Resume,
    Return,
    Run,
    StorageId,
    TightropeError,
)
from tightrope.core.executable import ARENA, HEAP
from tightrope.judge import Verdict, walk_executable
from tightrope.lower import Groups, announced, lowered, planned
from tightrope.native.hook.allocator import Allocator
from tightrope.price import Paced, clock_here
from tightrope.run.execute.check import RecomputeCheck
from tightrope.run.execute.emit import Code, Lease, PartCode, Wrap, emit
from tightrope.run.execute.paging import Paging
from tightrope.run.ledger.kept_pages import left_by


@dataclass
class Proof:
    """What was judged and checked of an executable, and when; filled in as it happens.

    Attributes:
        executable: its fingerprint.
        cause: why it was made.
        judged: when the judge accepted it, seconds since the epoch.
        seconds: that planning, lowering and judging took.
        checked: when its first run was checked inline, from the first part to the last; 0 = not yet.
        num_parts: checked so far, where its caller did something else before the last one.
        peak: largest number of live bytes of its own that was observed in any run.
        num_again: storages that it computes more than once.
        num_results: results whose layout was compared.
        reference: what it was compared with besides, in words.
        num_compared: runs that were compared with eager.
        lost: why no stretch runs fused, or nothing is paged, where that was asked for, in words.
        fused: how its fused stretches were compared with their ops, in words.
        num_chunks: in which a stretch of it runs; 0 = none does.
        channels_last: whether its convolutions work channels-last.
        num_products: matrix products that oneDNN computes.
        contest: what its steps took beside those of another form of the step, in words.
    """

    executable: str
    cause: str
    judged: float
    seconds: float
    checked: float = 0.0
    num_parts: int = 0
    peak: Bytes = 0
    num_again: int = 0
    num_results: int = 0
    reference: str = ""
    num_compared: int = 0
    fused: str = ""
    lost: str = ""
    num_chunks: int = 0
    channels_last: bool = False
    num_products: int = 0
    contest: str = ""

    def note(self, check: RecomputeCheck, reference: str, num_parts: int, *, over: bool) -> None:
        """Note what was checked in so many parts, and what they were compared with; ``over`` = in all."""
        self.num_parts = max(self.num_parts, num_parts)
        self.num_again, self.num_results = check.num_again, check.num_results
        self.fused = str(check.stretches)
        self.reference = reference or self.reference
        self.checked = time.time() if over else self.checked

    @property
    def rewritten(self) -> bool:
        """Whether other kernels than those of the captured ops compute some of it."""
        return self.channels_last or self.num_products > 0

    def __str__(self) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(self.judged))
        text = f"executable {self.executable[:12]} judged at {when}"
        if self.checked:
            when = time.strftime("%H:%M:%S", time.localtime(self.checked))
            again = f"{self.num_again} recomputed storages equal their first, bit for bit"
            text += f", checked in its first run at {when}: {self.fused or again}, "
            text += f"{self.num_results} results laid out as captured"
        elif self.num_parts:
            text += f", its first {self.num_parts} parts checked, the others did not run"
        else:
            text += ", not checked in a run yet"
        runs = f" (in {self.num_compared} runs)" * (self.num_compared > 1)
        return "; ".join(filter(None, (text, self.reference + runs, self.contest)))


class Span(NamedTuple):
    """What runs without the caller in between.

    Attributes:
        start: number of allocations served before it.
        end: and when it is over.
        live: bytes of its own that are live when it begins.
    """

    start: int
    end: int
    live: Bytes


@dataclass(frozen=True, eq=False)
class Prepared:
    """What runs; the registered addresses go when nothing can run it any more.

    Attributes:
        graph: what it computes.
        plan: that it was lowered from.
        executable: instructions.
        verdict: of the judge.
        code: flat functions.
        table: id of the registered sizes and offsets, -1 without a hook.
        starts: per part, number of allocations served before it, and at the end all of them.
        live: per part, bytes of its own that are live when it begins.
        peaks: per part, largest number of live bytes of its own.
        storage_of: storage that each buffer holds in the end, -1 for temporaries.
        allocator: where the addresses are registered.
        proof: what was judged and checked.
        times: of its recent runs.
        lease: reserves the pages of one run; None where it pages nothing.
        machine: with the tier that it pages to; None where it pages nothing.
    """

    graph: Graph
    plan: Plan
    executable: Executable
    verdict: Verdict
    code: Code
    table: int
    starts: tuple[int, ...]
    live: tuple[Bytes, ...]
    peaks: tuple[Bytes, ...]
    storage_of: tuple[StorageId, ...]
    allocator: Allocator | None
    proof: Proof = field(repr=False)
    times: Paced = field(repr=False)
    lease: Lease | None = field(repr=False, default=None)
    machine: Machine | None = None
    _in_groups: dict[tuple[int, Groups], tuple[PartCode, tuple[Span, ...]]] = field(
        default_factory=dict, repr=False
    )

    def __del__(self) -> None:
        if self.allocator is not None:
            self.allocator.drop_plan(self.table)

    @property
    def arena(self) -> Bytes:
        """Bytes of the arena."""
        return self.plan.forecast.arena

    @cached_property
    def clock(self) -> tuple[str, Callable[[], Nanoseconds]]:
        """What its steps are timed by: the clock of the prices, but the wall's where it waits for pages."""
        return clock_here() if self.lease is None else ("wall time", time.perf_counter_ns)

    @cached_property
    def left(self) -> Bytes:
        """Bytes that stay charged for its results, gradients among them, when it is done."""
        return left_by(self.executable)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every part as one span."""
        return tuple(map(Span, self.starts, self.starts[1:], self.live))

    def in_groups(self, part: int, groups: Groups) -> tuple[PartCode, tuple[Span, ...]]:
        """A backward that announces groups of its gradients, and its spans; kept.

        Raises:
            JudgeError: the judge refuses it.
        """
        key = part, groups
        if key not in self._in_groups:
            executable = announced(self.graph, self.executable, part, groups)
            walk_executable(self.graph, executable)
            code = emit(self.graph, executable)
            assert code.kept == self.code.kept
            self._in_groups[key] = code.parts[part], _spans(executable, part)
        return self._in_groups[key]

    def watched(self) -> tuple[Code, RecomputeCheck]:
        """The same code with the inline check around every kernel."""
        check = RecomputeCheck(self.graph, self.executable, self.allocator)
        return emit(self.graph, self.executable, wrap=check.wrap, lease=self.lease), check


def prepare(
    graph: Graph,
    plan: Plan,
    allocator: Allocator | None,
    *,
    cause: str = "first plan",
    began: float | None = None,
    wrap: Wrap | None = None,
    watch: Callable[[Code], Code] = lambda code: code,
    allow: tuple[str, ...] | None = None,
    paging: Paging | None = None,
) -> Prepared:
    """Lower a plan, have it judged, compile it and register its addresses.

    Args:
        graph: that the plan was made for.
        plan: with addresses.
        allocator: the hook; None = nothing is enforced.
        cause: why, for the report.
        began: when planning began, by ``time.perf_counter``.
        wrap: put around every kernel.
        watch: put around the parts.
        allow: libraries whose ops may be called; None = any.
        paging: where a plan that pages was made to page to.

    Raises:
        JudgeError: the judge refuses it.
        TightropeError: the plan cannot be lowered, or has no addresses.
    """
    if not plan.placed:
        raise TightropeError("a plan without addresses cannot run: plan with placement.")
    began = time.perf_counter() if began is None else began
    lease = None
    machine = paging.machine if paging is not None and plan.forecast.tiers else None
    if paging is not None and machine is not None:
        lease = partial(paging.file.lease, plan.forecast.tiers[0])
    executable, verdict = lowered(graph, plan, machine)
    proof = Proof(verdict.executable, cause, time.time(), time.perf_counter() - began)
    code = watch(emit(graph, executable, wrap=wrap, allow=allow, lease=lease))
    table = -1 if allocator is None else register(executable, allocator)
    starts, live, peaks = part_starts(executable)
    storage_of = _left_in(graph, executable)
    return Prepared(
        graph, plan, executable, verdict, code, table, starts, live, peaks, storage_of, allocator, proof,
        Paced(plan.fingerprint, plan.forecast, plain=wrap is None and lease is None), lease, machine,
    )  # fmt: skip


def register(executable: Executable, allocator: Allocator) -> int:
    """Hand the addresses of an executable to the hook; return their number."""
    served = planned(executable)
    sizes, offsets = [item.bytes for item in served], [item.offset for item in served]
    return allocator.register_plan(sizes, offsets, alignment=executable.spaces[ARENA].alignment)


def _left_in(graph: Graph, executable: Executable) -> tuple[StorageId, ...]:
    """The storage that each buffer holds in the end: an op may have written its result over the first one."""
    found: dict[int, StorageId] = {}
    for event in executable.flat():
        if isinstance(event, Alloc):
            found[event.buffer] = event.storage
        elif isinstance(event, Run):
            made = graph.op(event.op).results
            found.update(
                (mine.view.base, one.view.base) for mine, one in zip(event.results, made, strict=True)
            )
    return tuple(found[buffer] for buffer in range(len(found)))


def part_starts(executable: Executable) -> tuple[tuple[int, ...], tuple[Bytes, ...], tuple[Bytes, ...]]:
    """Allocations served, and bytes live, when each part begins; the most bytes live in each part."""
    starts: list[int] = []
    live: list[Bytes] = []
    peaks: list[Bytes] = []
    count = 0
    for event, count, held in _counted(executable):
        if isinstance(event, Resume):
            starts.append(count)
            live.append(held)
            peaks.append(held)
        elif peaks:
            peaks[-1] = max(peaks[-1], held)
    return (*starts, count), tuple(live), tuple(peaks)


def _spans(executable: Executable, part: int) -> tuple[Span, ...]:
    """What runs of a part between the moments in which the caller has control."""
    found: list[Span] = []
    at, begun = -1, (0, 0)
    for event, count, held in _counted(executable):
        at += isinstance(event, Resume)
        if at == part and isinstance(event, Announce | Return):
            found.append(Span(begun[0], count, begun[1]))
        if at == part and isinstance(event, Resume | Announce):
            begun = count, held
    return tuple(found)


def _counted(executable: Executable) -> Iterator[tuple[Instruction, int, Bytes]]:
    """The instructions, with the allocations served by then and the bytes live then."""
    count = held = 0
    sizes: dict[int, Bytes] = {}
    for event in executable.flat():
        if isinstance(event, Alloc) and event.space in (ARENA, HEAP):
            count += 1
            sizes[event.buffer] = executable.charged(event)
            held += sizes[event.buffer]
        elif isinstance(event, Release):
            held -= sizes.pop(event.buffer, 0)
        yield event, count, held
