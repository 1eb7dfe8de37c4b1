"""Executables while they are being damaged, and the ways to finish one.

A draft keeps the numbers of buffers as they were. It is finished as it stands, with buffers numbered
anew, or with releases put back where the normal form wants them and free places for new buffers too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tightrope.core import (
    Alloc,
    Argument,
    Copy,
    Executable,
    Graph,
    Input,
    Instruction,
    Items,
    Release,
    Result,
    Resume,
    Return,
    Run,
    Space,
    Sync,
    View,
    round_up,
)
from tightrope.core.executable import ARENA, CALLER
from tightrope.core.values import EMPTY, views

FRESH: Final = 1_000_000
"""Numbers of buffers that a mutator adds begin here, until they are numbered anew."""


@dataclass(frozen=True)
class Draft:
    """An executable while it is being damaged.

    Attributes:
        graph: that it computes.
        spaces: memories.
        instructions: in order.
        kept: buffers that the right executable never releases.
    """

    graph: Graph
    spaces: tuple[Space, ...]
    instructions: tuple[Instruction, ...]
    kept: frozenset[int] = frozenset()

    def with_(self, instructions: Sequence[Instruction]) -> "Draft":
        """The same with other instructions."""
        return replace(self, instructions=tuple(instructions))

    def at(self, position: int, *new: Instruction) -> "Draft":
        """The same with other instructions in place of one."""
        return self.with_((*self.instructions[:position], *new, *self.instructions[position + 1 :]))

    def places(self, *kinds: type) -> list[int]:
        """Positions of instructions of some kinds."""
        return [k for k, one in enumerate(self.instructions) if isinstance(one, kinds)]

    def allocs(self) -> dict[int, Alloc]:
        """Every allocation, by buffer."""
        return {e.buffer: e for e in flat(self.instructions) if isinstance(e, Alloc)}


def draft(graph: Graph, executable: Executable) -> Draft:
    """Begin with a right executable."""
    ended = {e.buffer for e in executable.flat() if isinstance(e, Release)}
    made = {e.buffer for e in executable.flat() if isinstance(e, Alloc)}
    return Draft(graph, executable.spaces, executable.instructions, frozenset(made - ended))


def flat(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    for instruction in instructions:
        yield instruction
        if isinstance(instruction, Run):
            yield from instruction.inside


# finishing


def touched(instruction: Instruction) -> Iterator[int]:
    """Iterate over the buffers that an instruction touches."""
    match instruction:
        case Alloc(buffer):
            yield buffer
        case Run():
            values = (*instruction.arguments, *(value for _, value in instruction.keywords))
            yield from (view.base for value in values for view in views(value))
            yield from (event.buffer for event in instruction.inside if isinstance(event, Alloc))
        case Copy(source, target):
            yield from (source, target)
        case Sync(target):
            yield target
        case Return(_, outputs):
            yield from (view.base for value in outputs for view in views(value))
        case Resume(_, inputs):
            yield from (given.view.base for given in inputs if given.view is not None)
        case _:
            pass


def tidied(of: Draft) -> Draft:
    """Release every buffer right after the last instruction that touches it, as the normal form wants."""
    body = [i for i in of.instructions if not isinstance(i, Release)]
    last: dict[int, int] = {}
    source: dict[int, int] = {}
    for position, instruction in enumerate(body):
        last.update(dict.fromkeys(touched(instruction), position))
        if isinstance(instruction, Copy):
            source[instruction.target] = instruction.source
        elif isinstance(instruction, Sync) and instruction.target in source:
            last[source[instruction.target]] = position
    inside = {e.buffer for i in body if isinstance(i, Run) for e in i.inside if isinstance(e, Release)}
    caller = {i.buffer for i in body if isinstance(i, Alloc) and i.space == CALLER}
    after: dict[int, list[int]] = {}
    for buffer in sorted(set(last) - inside - caller - of.kept - {EMPTY}):
        after.setdefault(last[buffer], []).append(buffer)
    made: list[Instruction] = []
    for position, instruction in enumerate(body):
        made.append(instruction)
        made.extend(Release(buffer) for buffer in after.get(position, ()))
    return of.with_(made)


def numbered(of: Draft) -> Draft:
    """Number buffers in the order in which they appear; one that never begins keeps its number."""
    number: dict[int, int] = {}
    for event in flat(of.instructions):
        if isinstance(event, Alloc):
            number.setdefault(event.buffer, len(number))
    ordered: list[Instruction] = []
    pending: list[Release] = []
    for instruction in of.instructions:  # releases in one place stand in ascending order
        if isinstance(instruction, Release):
            pending.append(Release(number.get(instruction.buffer, instruction.buffer)))
            continue
        ordered += [*_ascending(pending), renamed(instruction, number)]
        pending = []
    ordered += _ascending(pending)
    kept = frozenset(number.get(buffer, buffer) for buffer in of.kept)
    return replace(of, instructions=tuple(ordered), kept=kept)


def _ascending(releases: list[Release]) -> list[Release]:
    return sorted(releases, key=lambda release: release.buffer)


def renamed(instruction: Instruction, number: dict[int, int]) -> Instruction:
    """Give buffers other numbers; those without one keep theirs."""

    def to(buffer: int) -> int:
        return number.get(buffer, buffer)

    def event(one: Alloc | Release) -> Alloc | Release:
        return msgspec.structs.replace(one, buffer=to(one.buffer))

    if isinstance(instruction, Alloc | Release):
        return event(instruction)
    match instruction:
        case Copy(source, target, engine):
            return Copy(to(source), to(target), engine)
        case Sync(target):
            return Sync(to(target))
        case Run():
            inside = tuple(event(one) for one in instruction.inside)
            return rebased(msgspec.structs.replace(instruction, inside=inside), to)
        case _:
            return rebased(instruction, to)


def rebased(instruction: Instruction, to: Callable[[int], int]) -> Instruction:
    """Let the views of a run, a return or a resume look into other buffers."""

    def moved(view: View) -> View:
        return view if view.base == EMPTY else msgspec.structs.replace(view, base=to(view.base))

    return each_view(instruction, moved)


def each_view(instruction: Instruction, change: Callable[[View], View]) -> Instruction:
    """Change every view of a run, a return or a resume, in order."""

    def value(one: Argument) -> Any:
        if isinstance(one, View):
            return change(one)
        return Items(tuple(value(item) for item in one.items)) if isinstance(one, Items) else one

    match instruction:
        case Run():
            return msgspec.structs.replace(
                instruction,
                arguments=tuple(value(one) for one in instruction.arguments),
                keywords=tuple((name, value(one)) for name, one in instruction.keywords),
                results=tuple(Result(r.position, value(r.view)) for r in instruction.results),
            )
        case Return(op, outputs):
            return Return(op, tuple(value(one) for one in outputs))
        case Resume(part, inputs):
            given = tuple(Input(i.name, None if i.view is None else value(i.view)) for i in inputs)
            return Resume(part, given)
    return instruction


def placed(of: Draft) -> Draft:
    """Give buffers that a mutator added a free place in the arena, where there is one."""
    allocs = of.allocs()
    begins, ends = lifetimes(of.instructions)
    unit, capacity = of.spaces[ARENA].alignment, of.spaces[ARENA].capacity
    moved: dict[int, int] = {}
    for buffer in sorted(b for b, a in allocs.items() if b >= FRESH and a.space == ARENA):
        taken = sorted(
            (moved.get(b, a.offset), moved.get(b, a.offset) + round_up(a.bytes, unit))
            for b, a in allocs.items()
            if a.space == ARENA
            and (b < FRESH or b in moved)
            and begins[b] < ends[buffer]
            and begins[buffer] < ends[b]
        )
        low = 0
        for begin, end in taken:
            if low + round_up(allocs[buffer].bytes, unit) <= begin:
                break
            low = max(low, end)
        if low + allocs[buffer].bytes <= capacity:
            moved[buffer] = low
    return each_alloc(of, lambda a: msgspec.structs.replace(a, offset=moved.get(a.buffer, a.offset)))


def lifetimes(instructions: Sequence[Instruction]) -> tuple[dict[int, int], dict[int, int]]:
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    tick = 0
    for tick, event in enumerate(flat(instructions)):
        if isinstance(event, Alloc):
            begins.setdefault(event.buffer, tick)
        elif isinstance(event, Release):
            ends[event.buffer] = tick
    return begins, {buffer: ends.get(buffer, tick + 1) for buffer in begins}


def each_alloc(of: Draft, change: Callable[[Alloc], Alloc]) -> Draft:
    made: list[Instruction] = []
    for instruction in of.instructions:
        if isinstance(instruction, Alloc):
            made.append(change(instruction))
        elif isinstance(instruction, Run):
            inside = tuple(change(e) if isinstance(e, Alloc) else e for e in instruction.inside)
            made.append(msgspec.structs.replace(instruction, inside=inside))
        else:
            made.append(instruction)
    return of.with_(made)
