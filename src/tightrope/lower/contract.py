"""Contract runs in a row into one compiled function.

Idea        What a stretch makes and releases again becomes a value inside the function, without memory of
            its own. What outlives it is allocated by the function, together with its own temporaries, as
            they were measured. What it releases of others ends right behind it.
Guarantee   The ops, their order and their arguments stay. Equal executables and stretches give equal
            executables, in the normal form of `tightrope.core.executable`, without addresses.
Complexity  Linear in the instructions and their arguments.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from tightrope.core import (
    Alloc,
    Allocation,
    Announce,
    Argument,
    Collective,
    Copy,
    Decode,
    Encode,
    Executable,
    Fused,
    FusedStretch,
    Instruction,
    PlanFileError,
    Recv,
    Release,
    Resume,
    Return,
    Run,
    Send,
    Sync,
    View,
)
from tightrope.core.executable import ARENA
from tightrope.core.values import INNER, Result, rebased


def contract(executable: Executable, stretches: Sequence[FusedStretch]) -> Executable:
    """Let each stretch run as one compiled function.

    Args:
        executable: without addresses.
        stretches: in order, without overlap.

    Raises:
        PlanFileError: a stretch does not fit what runs.
    """
    rest = list(executable.instructions)
    found: list[Instruction] = []
    number = at = 0
    fresh = 1 + max((e.buffer for e in executable.flat() if isinstance(e, Alloc)), default=-1)
    for stretch in stretches:
        while at < len(rest) and (number < stretch.first or not isinstance(rest[at], Run)):
            number += isinstance(rest[at], Run)
            found.append(rest[at])
            at += 1
        begin = at
        while at < len(rest) and (number < stretch.last or isinstance(rest[at], Release)):
            number += isinstance(rest[at], Run)
            at += 1
        if number != stretch.last:
            raise PlanFileError(f"the plan fuses runs up to {stretch.last}; {number} run.")
        found += _contracted(rest[begin:at], stretch, fresh)
        fresh += len(stretch.allocations)
    return _renumbered(replace(executable, instructions=(*found, *rest[at:]), placed=False))


def _contracted(region: Sequence[Instruction], stretch: FusedStretch, fresh: int) -> list[Instruction]:
    runs = [item for item in region if isinstance(item, Run)]
    ended = {item.buffer for item in region if isinstance(item, Release)}
    if len(runs) + len(ended) != len(region):
        raise PlanFileError(
            f"the plan fuses runs {stretch.first} to {stretch.last}, but not all are kernels."
        )
    made: dict[int, Alloc] = {}
    for run in runs:
        made |= {
            event.buffer: event for event in run.inside if isinstance(event, Alloc) and event.storage >= 0
        }
    kept = {alloc.storage: alloc for buffer, alloc in made.items() if buffer not in ended}
    inside = _inside(stretch.allocations, kept, fresh)
    inner: dict[int, int] = {}
    for run in runs:
        for result in run.results:
            if result.view.base in ended:
                inner[result.view.base] = INNER - len(inner)
    behind = sorted(ended - set(made))
    return [Fused(tuple(_run(run, inner) for run in runs), inside, stretch.ns), *map(Release, behind)]


def _inside(
    allocations: Sequence[Allocation], kept: Mapping[int, Alloc], fresh: int
) -> tuple[Alloc | Release, ...]:
    named = sorted(item.storage for item in allocations if item.storage >= 0)
    if named != sorted(kept):
        raise PlanFileError(f"the plan lets a fused stretch leave storages {named}; it makes {sorted(kept)}.")
    ticks: list[tuple[int, bool, int]] = []
    for number, item in enumerate(allocations):
        ticks.append((item.start, True, number))
        if item.end >= 0:
            ticks.append((item.end, False, number))
    events: list[Alloc | Release] = []
    for _, begins, number in sorted(ticks):
        item = allocations[number]
        if not begins:
            events.append(Release(fresh + number))
        elif item.storage >= 0:
            events.append(replace(kept[item.storage], bytes=item.bytes, offset=-1))
        else:
            events.append(Alloc(fresh + number, ARENA, item.bytes))
    return tuple(events)


def _run(run: Run, inner: Mapping[int, int]) -> Run:
    return replace(_rebased(run, inner), inside=())


def _rebased(run: Run, numbers: Mapping[int, int]) -> Run:
    def value(argument: Argument) -> Argument:
        return rebased(argument, lambda view: numbers.get(view.base, view.base))

    def result(item: Result) -> Result:
        view = value(item.view)
        assert isinstance(view, View)
        return Result(item.position, view)

    return replace(
        run,
        arguments=tuple(value(item) for item in run.arguments),
        keywords=tuple((name, value(item)) for name, item in run.keywords),
        results=tuple(result(item) for item in run.results),
    )


def _renumbered(executable: Executable) -> Executable:
    """Number buffers in the order in which they begin, and release them in that order."""
    numbers: dict[int, int] = {}
    for event in executable.flat():
        if isinstance(event, Alloc):
            numbers[event.buffer] = len(numbers)

    def event_of(event: Alloc | Release) -> Alloc | Release:
        return replace(event, buffer=numbers[event.buffer])

    def value(argument: Argument) -> Argument:
        return rebased(argument, lambda view: numbers.get(view.base, view.base))

    def moved(instruction: Instruction) -> Instruction:
        match instruction:
            case Alloc() | Release():
                return event_of(instruction)
            case Run():
                return replace(
                    _rebased(instruction, numbers), inside=tuple(map(event_of, instruction.inside))
                )
            case Fused(runs, inside):
                runs = tuple(_rebased(run, numbers) for run in runs)
                return replace(instruction, runs=runs, inside=tuple(map(event_of, inside)))
            case Copy(source, target, engine):
                return Copy(numbers[source], numbers[target], engine)
            case Sync(target):
                return Sync(numbers[target])
            case Announce(positions, outputs):
                return Announce(positions, tuple(value(item) for item in outputs))
            case Return(op, outputs):
                return Return(op, tuple(value(item) for item in outputs))
            case Resume(_, inputs):
                given = tuple(replace(i, view=None if i.view is None else value(i.view)) for i in inputs)
                return replace(instruction, inputs=given)
            case Send() | Recv():
                return replace(instruction, buffer=numbers[instruction.buffer])
            case Collective(source=source, target=target) | Encode(source, target) | Decode(source, target):
                return replace(instruction, source=numbers[source], target=numbers[target])

    instructions: list[Instruction] = []
    for is_release, group in groupby(map(moved, executable.instructions), lambda i: isinstance(i, Release)):
        some = list(group)
        instructions += sorted(some, key=lambda i: getattr(i, "buffer", 0)) if is_release else some
    return replace(executable, instructions=tuple(instructions))
