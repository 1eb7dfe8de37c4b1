"""Plain eager training steps, with every op on its module.

Idea        Module hooks note when a module begins and ends; torch's profiler notes ops, their sequence
            numbers and every allocation. A backward node belongs to the module of the forward op with
            its sequence number, an accumulated gradient to the module that owns the parameter.
Guarantee   Results are unchanged; hooks and profiler are gone after the block, also after an error.
Complexity  Linear in events.
Gaps        Modules that run on several threads at once share one stack of open modules.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch
from torch.profiler import profile

from tightrope.core import (
    Buffer,
    Bytes,
    Category,
    EventPhase,
    Held,
    Module,
    Nanoseconds,
    Summary,
    TightropeError,
    Trace,
    round_up,
)
from tightrope.price.profiler import cpu_profile, events_of, start_profile
from tightrope.record.tables import BY_PHASE, clip
from tightrope_trace.reverse import by_sequence
from tightrope_trace.rows import inherit, to_trace
from tightrope_trace.slices import Slice, nested
from tightrope_trace.stages import ENGINE, stages

_ALLOCATION = "Allocation"
_FACTORIES = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "full", "full_like", "new_empty", "new_empty_strided",
        "new_full", "new_ones", "new_zeros", "ones", "ones_like", "resize_", "scalar_tensor", "zeros",
        "zeros_like",
    )
)  # fmt: skip
"""Ops that do nothing but allocate and fill, mostly for another one."""


@dataclass
class EagerRecording:
    """Filled by `record_eager`; ask for ``trace`` after its ``with`` block."""

    model: torch.nn.Module
    modules: tuple[Module, ...]
    _profile: profile
    _memory: bool = True
    _marks: list[tuple[Nanoseconds, int]] = field(default_factory=list)
    _runs: list[tuple[Nanoseconds, bool]] = field(default_factory=list)
    _open: list[int] = field(default_factory=lambda: [0])
    _gradients: list[tuple[Nanoseconds, int]] = field(default_factory=list)
    _handed_out: list[tuple[Nanoseconds, frozenset[int]]] = field(default_factory=list)
    _done: bool = False

    @property
    def trace(self) -> Trace:
        """What ran inside the block.

        Raises:
            TightropeError: the block has not ended.
        """
        if not self._done:
            raise TightropeError(
                "the recording goes on until its `with` block ends: ask for the trace after it."
            )
        return _trace(self)

    def enter(self, module: int, *_: Any) -> None:
        """Note that a module begins."""
        self._open.append(module)
        if module == 0:
            self._runs.append((time.time_ns(), True))
        self._marks.append((time.time_ns(), module))

    def leave(self, module: int, _module: torch.nn.Module, _args: Any, result: Any) -> None:
        """Note that a module ends, and what the model hands back; one that raised is closed with it."""
        if module == 0 and self._memory:
            self._handed_out.append((time.time_ns(), frozenset(_addresses(result))))
        if module in self._open:
            while self._open.pop() != module:
                pass
        self._marks.append((time.time_ns(), self._open[-1] if self._open else 0))
        if module == 0:
            self._runs.append((time.time_ns(), False))

    def accumulated(self, module: int, *_: Any) -> None:
        """Note that the gradient of a parameter of a module was accumulated."""
        self._gradients.append((time.time_ns(), module))


def _addresses(result: Any) -> list[int]:
    """Addresses of the tensors in what a model returns, in lists, tuples and mappings too."""
    if isinstance(result, torch.Tensor):
        return [result.untyped_storage().data_ptr()] if result.layout is torch.strided else []
    if not isinstance(result, Mapping | list | tuple):
        return []
    inside = result.values() if isinstance(result, Mapping) else result
    return [address for one in inside for address in _addresses(one)]


def tree_of(model: torch.nn.Module) -> tuple[Module, ...]:
    """List the modules of a model in order of definition, root first.

    Example:
        >>> [module.path for module in tree_of(torch.nn.Sequential(torch.nn.Linear(1, 1)))]
        ['', '0']
    """
    at: dict[str, int] = {}
    rows: list[Module] = []
    for path, module in model.named_modules():
        at[path] = len(rows)
        rows.append(Module(clip(path), _kind(type(module)), at[path.rpartition(".")[0]] if path else -1))
    return tuple(rows)


def _kind(of: type[torch.nn.Module]) -> str:
    """Name a class; one that is only called as one of torch's is told from it by the module it is from."""
    own = getattr(torch.nn, of.__name__, of)
    return of.__name__ if own is of else clip(f"{of.__module__}.{of.__name__}")


@contextmanager
def record_eager(model: torch.nn.Module, *, memory: bool = True) -> Iterator[EagerRecording]:
    """Record a training step of a model that runs as it is.

    Args:
        model: whose modules are hooked while the block runs.
        memory: record allocations too.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        >>> with record_eager(model) as recording:
        ...     model(torch.ones(1, 4)).sum().backward()
        >>> sorted({event.phase.value for event in recording.trace.events} & {"forward", "backward"})
        ['backward', 'forward']
    """
    rows = tree_of(model)
    watcher = cpu_profile(memory=memory)
    recording = EagerRecording(model, rows, watcher, memory)
    handles: list[Any] = []
    try:
        for number, (_, module) in enumerate(model.named_modules()):
            handles.append(module.register_forward_pre_hook(partial(recording.enter, number)))
            handles.append(module.register_forward_hook(partial(recording.leave, number), always_call=True))
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad:
                    note = partial(recording.accumulated, number)
                    handles.append(parameter.register_post_accumulate_grad_hook(note))
        start_profile(watcher)
        try:
            yield recording
        finally:
            watcher.stop()
            recording._done = True
    finally:
        for handle in handles:
            handle.remove()


def slices_of(recording: EagerRecording) -> tuple[tuple[Slice, ...], Nanoseconds]:
    """Slices of what ran, and the time of the first one by the clock of hooks."""
    rows = [row for row in events_of(recording._profile) if not row.name().startswith("[")]
    base = min((row.start_ns() for row in rows), default=0)
    main = rows[0].start_thread_id() if rows else 0
    threads = {main: 0}
    slices = nested(
        [
            Slice(
                clip(row.name()),
                row.start_ns() - base,
                row.end_ns() - base,
                threads.setdefault(row.start_thread_id(), len(threads)),
                sequence=row.sequence_nr(),
                annotation=row.is_user_annotation(),
            )
            for row in rows
        ]
    )
    return slices, base


def _trace(recording: EagerRecording) -> Trace:
    slices, base = slices_of(recording)
    results = recording._profile.profiler.kineto_results if recording._profile.profiler else None
    phases = stages(slices, inside(recording, slices, base))
    owners = _owners(recording, slices, phases, base)
    trace = to_trace(
        slices,
        phases,
        owners,
        recording.modules,
        Summary(
            name=type(recording.model).__name__,
            producer="eager",
            persistent=_persistent(recording.model)[1],
        ),
    )
    handed_out = [(when - base, addresses) for when, addresses in recording._handed_out]
    buffers, ticks = _buffers(trace, _allocations(results, base), handed_out)
    return msgspec.structs.replace(
        trace, buffers=buffers, ticks=ticks, num_events=len(ticks), held=_persistent(recording.model)[0]
    )


def inside(recording: EagerRecording, slices: Sequence[Slice], base: Nanoseconds) -> list[bool]:
    """Tell for every slice whether it began while the model ran."""
    times = [when - base for when, _ in recording._runs]
    found = [bisect_right(times, one.start) for one in slices]
    return [at > 0 and recording._runs[at - 1][1] for at in found]


def _owners(
    recording: EagerRecording, slices: tuple[Slice, ...], phases: list[EventPhase], base: Nanoseconds
) -> list[int]:
    """The innermost open module for forward ops; the forward op's for nodes; the parameter's for sums."""
    times = [when - base for when, _ in recording._marks]
    owners = [0] * len(slices)
    settled = set()
    for position, one in enumerate(slices):
        if phases[position] is not EventPhase.BACKWARD:
            at = bisect_right(times, one.start)
            owners[position] = recording._marks[at - 1][1] if at else 0
            settled.add(position)
    for node, op in by_sequence(slices, phases).items():
        owners[node] = owners[op]
        settled.add(node)
    nodes = [position for position, one in enumerate(slices) if one.name.startswith(ENGINE)]
    starts = [slices[position].start for position in nodes]
    called = {module for _, module in recording._marks}
    for when, module in recording._gradients:
        at = bisect_right(starts, when - base)
        if at:
            owners[nodes[at - 1]] = _called(module, called, recording.modules)
            settled.add(nodes[at - 1])
    inherit(slices, owners, frozenset(settled))
    return owners


def _called(module: int, called: set[int], modules: tuple[Module, ...]) -> int:
    """The innermost module around a parameter that was called: some only hold it for the one around."""
    while module > 0 and module not in called:
        module = modules[module].parent
    return module


def _persistent(model: torch.nn.Module) -> tuple[tuple[Held, ...], Bytes]:
    sums = {
        Category.PARAMETER: {
            p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()
        },
        Category.BUFFER: {
            b.untyped_storage().data_ptr(): b.untyped_storage().nbytes() for b in model.buffers()
        },
    }
    held = tuple(
        Held(kind, total) for kind, sizes in sums.items() if (total := sum(map(round_up, sizes.values())))
    )
    return held, sum(row.bytes for row in held)


def _allocations(results: Any, base: Nanoseconds) -> list[tuple[Nanoseconds, int, int]]:
    """List (time, address, signed bytes) of every allocation and release on the CPU."""
    found = []
    waiting = list(results.experimental_event_tree()) if results else []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == _ALLOCATION:
            fields = event.extra_fields
            found.append((max(event.start_time_ns - base, 0), fields.ptr, fields.alloc_size))
    return sorted(found, key=lambda row: row[0])


def _buffers(
    trace: Trace,
    allocations: list[tuple[Nanoseconds, int, int]],
    handed_out: list[tuple[Nanoseconds, frozenset[int]]],
) -> tuple[tuple[Buffer, ...], tuple[Nanoseconds, ...]]:
    """Pair allocations with releases by address; what was made before the block is left out."""
    live: dict[int, int] = {}
    rows: list[tuple[Bytes, int, Nanoseconds]] = []
    waiting, outputs = deque(handed_out), set[int]()
    ends: dict[int, int] = {}
    ticks: list[Nanoseconds] = []
    for when, address, size in allocations:
        while waiting and waiting[0][0] <= when:
            outputs |= {live[known] for known in waiting.popleft()[1] if known in live}
        if size > 0:
            live[address] = len(rows)
            rows.append((size, len(ticks), when))
        elif address in live:
            ends[live.pop(address)] = len(ticks)
        else:
            continue
        ticks.append(when)
    for _, addresses in waiting:
        outputs |= {live[known] for known in addresses if known in live}
    starts, around = [event.start for event in trace.events], _around(trace)
    found = []
    for number, (size, start, when) in enumerate(rows):
        creator = _maker(trace, _innermost(trace, bisect_right(starts, when) - 1, when), around)
        end = ends.get(number, len(ticks))
        kind = Category.OUTPUT if number in outputs else _category(trace, creator, end, ticks)
        found.append(Buffer(size, start, end, creator=creator, category=kind))
    return tuple(found), tuple(ticks)


def _innermost(trace: Trace, at: int, when: Nanoseconds) -> int:
    """The last event that began before a moment and had not ended."""
    for position in range(at, max(at - 50, -1), -1):
        if trace.events[position].thread == 0 and trace.events[position].end >= when:
            return position
    return -1


def _around(trace: Trace) -> list[int]:
    """The event around every event, on the same thread, or -1."""
    found = []
    stacks: dict[int, list[int]] = {}
    for position, event in enumerate(trace.events):
        stack = stacks.setdefault(event.thread, [])
        while stack and trace.events[stack[-1]].end <= event.start:
            stack.pop()
        found.append(stack[-1] if stack else -1)
        stack.append(position)
    return found


def _maker(trace: Trace, event: int, around: list[int]) -> int:
    """The op that an allocation is for: where it was left to a factory, the op that called it."""
    while event >= 0 and trace.events[event].name in _FACTORIES and (caller := around[event]) >= 0:
        name = trace.events[caller].name
        if "::" not in name or name.startswith(ENGINE):
            break
        event = caller
    return event


def _category(trace: Trace, creator: int, end: int, ticks: list[Nanoseconds]) -> Category:
    """A temporary dies with its op; the stage of the op tells all else."""
    if creator < 0:
        return Category.UNKNOWN
    event = trace.events[creator]
    if end < len(ticks) and ticks[end] <= event.end:
        return Category.TEMPORARY
    return BY_PHASE.get(event.phase, Category.UNKNOWN)
