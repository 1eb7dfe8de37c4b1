"""Damaged executables: eight families of small changes to a right one.

Every mutator takes a `Draft` and a random state, and returns the changed draft or None where there is
nothing to change in its way. `mutate` finishes it: as it stands, with buffers numbered anew, or with
releases put back where the normal form wants them too. The last is the hardest to refuse, because all
that is wrong is what was changed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgspec

from tightrope.core import (
    Alloc,
    Argument,
    Bytes,
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
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER
from tightrope.core.values import EMPTY, views

_FRESH: Final = 1_000_000
"""Numbers of buffers that a mutator adds begin here, until they are numbered anew."""
ALIGNMENTS: Final = (-1, 1, 8, 63)


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
        return {e.buffer: e for e in _flat(self.instructions) if isinstance(e, Alloc)}


Mutator = Callable[[Random, Draft], Draft | None]


def draft(graph: Graph, executable: Executable) -> Draft:
    """Begin with a right executable."""
    ended = {e.buffer for e in executable.flat() if isinstance(e, Release)}
    made = {e.buffer for e in executable.flat() if isinstance(e, Alloc)}
    return Draft(graph, executable.spaces, executable.instructions, frozenset(made - ended))


def _flat(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
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
    for event in _flat(of.instructions):
        if isinstance(event, Alloc):
            number.setdefault(event.buffer, len(number))
    made = [_moved(i, number) for i in of.instructions]
    ordered: list[Instruction] = []
    pending: list[Release] = []
    for instruction in made:  # releases in one place stand in ascending order
        if isinstance(instruction, Release):
            pending.append(instruction)
            continue
        ordered += [*sorted(pending, key=lambda release: release.buffer), instruction]
        pending = []
    ordered += sorted(pending, key=lambda release: release.buffer)
    kept = frozenset(number.get(buffer, buffer) for buffer in of.kept)
    return replace(of, instructions=tuple(ordered), kept=kept)


def _moved(instruction: Instruction, number: dict[int, int]) -> Instruction:
    def to(buffer: int) -> int:
        return number.get(buffer, buffer)

    def event(one: Alloc | Release) -> Alloc | Release:
        return msgspec.structs.replace(one, buffer=to(one.buffer))

    match instruction:
        case Alloc() | Release():
            return event(instruction)
        case Copy(source, target, engine):
            return Copy(to(source), to(target), engine)
        case Sync(target):
            return Sync(to(target))
        case Run():
            moved = rebased(instruction, to)
            return msgspec.structs.replace(moved, inside=tuple(event(one) for one in instruction.inside))
        case _:
            return rebased(instruction, to)


def rebased(instruction: Any, to: Callable[[int], int]) -> Any:
    """Let the views of a run, a return or a resume look into other buffers."""

    def value(one: Argument) -> Any:
        if isinstance(one, View):
            return one if one.base == EMPTY else msgspec.structs.replace(one, base=to(one.base))
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
    begins, ends = _lifetimes(of.instructions)
    unit, capacity = of.spaces[ARENA].alignment, of.spaces[ARENA].capacity
    moved: dict[int, int] = {}
    for buffer in sorted(b for b, a in allocs.items() if b >= _FRESH and a.space == ARENA):
        taken = sorted(
            (moved.get(b, a.offset), moved.get(b, a.offset) + round_up(a.bytes, unit))
            for b, a in allocs.items()
            if a.space == ARENA
            and (b < _FRESH or b in moved)
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
    return _each_alloc(of, lambda a: msgspec.structs.replace(a, offset=moved.get(a.buffer, a.offset)))


def _lifetimes(instructions: Sequence[Instruction]) -> tuple[dict[int, int], dict[int, int]]:
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    tick = 0
    for tick, event in enumerate(_flat(instructions)):
        if isinstance(event, Alloc):
            begins.setdefault(event.buffer, tick)
        elif isinstance(event, Release):
            ends[event.buffer] = tick
    return begins, {buffer: ends.get(buffer, tick + 1) for buffer in begins}


def _each_alloc(of: Draft, change: Callable[[Alloc], Alloc]) -> Draft:
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


# offset, size, space


def _some_alloc(rng: Random, of: Draft, *, planned: float = 0.8) -> Alloc:
    every = list(of.allocs().values())
    inside = [alloc for alloc in every if alloc.space in (ARENA, HEAP)]
    return rng.choice(inside if inside and rng.random() < planned else every)


def _changed(of: Draft, alloc: Alloc, **fields: int) -> Draft | None:
    new = msgspec.structs.replace(alloc, **fields)
    if new == alloc:
        return None
    return _each_alloc(of, lambda a: new if a.buffer == alloc.buffer else a)


def move_offset(rng: Random, of: Draft) -> Draft | None:
    """Another address: by a few bytes, by a line, onto another block, out of the arena."""
    alloc = _some_alloc(rng, of)
    unit, capacity = of.spaces[ARENA].alignment, of.spaces[ARENA].capacity
    others = [a.offset for a in of.allocs().values() if a.space == ARENA and a.bytes]
    offset = rng.choice(
        (
            alloc.offset + rng.choice(ALIGNMENTS),
            alloc.offset + unit * rng.choice((-2, -1, 1, 2)),
            rng.choice(others) if others else 0,
            rng.randrange(capacity // unit + 1) * unit,
            capacity - round_up(alloc.bytes, unit) + unit,
            -1,
            0,
        )
    )
    return _changed(of, alloc, offset=offset)


def move_towards(rng: Random, of: Draft) -> Draft | None:
    """Another address that a block still alive takes by its last or first line."""
    begins, ends = _lifetimes(of.instructions)
    blocks = [a for a in of.allocs().values() if a.space == ARENA and a.bytes]
    if not blocks:
        return None
    alloc, unit = rng.choice(blocks), of.spaces[ARENA].alignment
    size = round_up(alloc.bytes, unit)
    beside = [
        b
        for b in blocks
        if b is not alloc and begins[b.buffer] < ends[alloc.buffer] and begins[alloc.buffer] < ends[b.buffer]
    ]
    if not beside:
        return None
    other = rng.choice(beside)
    low, high = other.offset - size + unit, other.offset + round_up(other.bytes, unit) - unit
    return _changed(of, alloc, offset=max(0, rng.choice((low, high))))


def change_size(rng: Random, of: Draft) -> Draft | None:
    """Other bytes: one more or less, a line, twice, half, none."""
    alloc = _some_alloc(rng, of, planned=0.6)
    size: Bytes = alloc.bytes
    new = rng.choice((size + 1, size - 1, size + 64, size - 64, 2 * size, size // 2, 0, round_up(size, 64)))
    return _changed(of, alloc, bytes=max(new, 0))


def change_space(rng: Random, of: Draft) -> Draft | None:
    """Another memory, with the address that belongs there, or with the old one."""
    alloc = _some_alloc(rng, of, planned=0.6)
    spaces = [s for s in range(-1, len(of.spaces) + 1) if s != alloc.space]
    space = rng.choice([ARENA, HEAP] if rng.random() < 0.5 and alloc.space >= SLOWER else spaces)
    offsets = (alloc.offset, -1, 0, rng.randrange(of.spaces[ARENA].capacity // 64 + 1) * 64)
    return _changed(of, alloc, space=space, offset=rng.choice(offsets))


def change_memory(rng: Random, of: Draft) -> Draft | None:
    """Another alignment, tier, name or size of a memory; one memory more, fewer, or in another place."""
    spaces = list(of.spaces)
    number = rng.randrange(len(spaces))
    space = spaces[number]
    changes: list[dict[str, Any]] = [
        {"alignment": rng.choice((1, space.alignment // 2, space.alignment * 2))},
        {"tier": space.tier + rng.choice((-1, 1))},
        {"name": space.name + "2"},
    ]
    if number == ARENA:
        changes += [{"capacity": space.capacity + rng.choice((-4096, -64, -1, 64))}] * 3
    elif number >= SLOWER:
        changes += [{"capacity": space.capacity + rng.choice((-64, 64))}]
    spaces[number] = msgspec.structs.replace(space, **rng.choice(changes))
    if rng.random() < 0.2:
        spaces = list(of.spaces)
        other = rng.randrange(len(spaces))
        rng.choice(
            (
                lambda: spaces.append(space),
                lambda: spaces.pop(number),
                lambda: spaces.insert(0, spaces.pop(other)),
            )
        )()
    return replace(of, spaces=tuple(spaces)) if tuple(spaces) != of.spaces else None


# dropped, doubled, swapped


def _any_place(rng: Random, of: Draft) -> int:
    """One instruction; each kind is as likely."""
    kinds = sorted({type(i).__name__ for i in of.instructions})
    kind = rng.choice([*kinds, "Run", "Run"])
    return rng.choice([k for k, i in enumerate(of.instructions) if type(i).__name__ == kind])


def drop(rng: Random, of: Draft) -> Draft | None:
    """Leave an instruction out, or an event inside a kernel."""
    position = _any_place(rng, of)
    run = of.instructions[position]
    if isinstance(run, Run) and run.inside and rng.random() < 0.3:
        gone = rng.randrange(len(run.inside))
        inside = run.inside[:gone] + run.inside[gone + 1 :]
        return of.at(position, msgspec.structs.replace(run, inside=inside))
    return of.at(position)


def drop_again(rng: Random, of: Draft) -> Draft | None:
    """Leave a run out that computes something again; later readers look into the copy before it."""
    copies: dict[int, list[int]] = {}
    for alloc in of.allocs().values():
        if alloc.storage >= 0 and alloc.space == ARENA:
            copies.setdefault(alloc.storage, []).append(alloc.buffer)
    again = {b: before for many in copies.values() for before, b in pairwise(many)}
    places = [k for k in of.places(Run) if any(r.view.base in again for r in _run(of, k).results)]
    if not places:
        return None
    position = rng.choice(places)
    made = [r.view.base for r in _run(of, position).results]
    to = {b: again[b] for b in made if b in again}
    return of.with_(
        [rebased(i, lambda b: to.get(b, b)) for k, i in enumerate(of.instructions) if k != position]
    )


def double(rng: Random, of: Draft) -> Draft | None:
    """Do something twice, at once or a little later, as it stands."""
    position = _any_place(rng, of)
    later = min(position + rng.choice((1, 1, 2, 5, 20)), len(of.instructions))
    made = list(of.instructions)
    made.insert(later, of.instructions[position])
    return of.with_(made)


def run_again(rng: Random, of: Draft) -> Draft | None:
    """Run a kernel once more, into buffers of its own; what comes later reads those, or nobody does."""
    position = rng.choice(of.places(Run))
    later = rng.randrange(position + 1, len(of.instructions))
    return _again(rng, of, position, later)


def _again(rng: Random, of: Draft, position: int, later: int) -> Draft:
    run = _run(of, position)
    fresh = {e.buffer: _FRESH + k for k, e in enumerate(run.inside) if isinstance(e, Alloc)}
    twin = _moved(run, fresh)
    rest = list(of.instructions[later:])
    kept = of.kept
    if rng.random() < 0.7:
        rest = [_used(i, fresh) for i in rest]
        kept = frozenset(fresh.get(b, b) for b in kept)
    return replace(of, instructions=(*of.instructions[:later], twin, *rest), kept=kept)


def _used(instruction: Instruction, fresh: dict[int, int]) -> Instruction:
    if isinstance(instruction, Copy):
        return Copy(fresh.get(instruction.source, instruction.source), instruction.target, instruction.engine)
    return rebased(instruction, lambda b: fresh.get(b, b))  # type: ignore[no-any-return]


def swap(rng: Random, of: Draft) -> Draft | None:
    """Exchange two neighbours, or two that stand a little apart."""
    first = rng.randrange(len(of.instructions) - 1)
    second = min(first + rng.choice((1, 1, 1, 2, 3, 8)), len(of.instructions) - 1)
    made = list(of.instructions)
    made[first], made[second] = made[second], made[first]
    return of.with_(made) if made[first] != made[second] else None


def swap_runs(rng: Random, of: Draft) -> Draft | None:
    """Exchange two kernels that follow each other, whatever else stands between them."""
    runs = of.places(Run, Copy, Sync, Return, Resume)
    if len(runs) < 2:
        return None
    number = rng.randrange(len(runs) - 1)
    first, second = runs[number], runs[number + 1]
    made = list(of.instructions)
    made[first], made[second] = made[second], made[first]
    return of.with_(made)


# arguments


def _run(of: Draft, position: int) -> Run:
    found = of.instructions[position]
    assert isinstance(found, Run)
    return found


def _other_view(rng: Random, of: Draft, view: View) -> View:
    """Look in another way: at other elements, in another order, as another type, into another buffer."""
    fields: list[dict[str, Any]] = [
        {"offset": view.offset + rng.choice((-1, 1, 2))},
        {"dtype": rng.choice([d for d in ("float32", "int32", "float64", "bool") if d != view.dtype])},
        {"bits": "neg" if not view.bits else ""},
        {"input": view.input + rng.choice((-1, 1))},
        {"base": rng.choice(sorted(of.allocs()))},
    ]
    if len(view.shape) > 1:
        fields.append({"strides": view.strides[::-1]})
        fields.append({"shape": view.shape[::-1], "strides": view.strides[::-1]})
    if view.shape:
        fields.append({"shape": (max(view.shape[0] - 1, 0), *view.shape[1:])})
        fields.append({"strides": (view.strides[0] + 1, *view.strides[1:])})
    return msgspec.structs.replace(view, **rng.choice(fields))


def change_view(rng: Random, of: Draft) -> Draft | None:
    """One view of a kernel's arguments or results, of outputs or of inputs, looks otherwise."""
    position = rng.choice(of.places(Run) if rng.random() < 0.85 else of.places(Return, Resume))
    seen: list[View] = []

    def note(view: View) -> View:
        seen.append(view)
        return view

    _each_view(of.instructions[position], note)
    if not seen:
        return None
    chosen = rng.randrange(len(seen))
    new, count = _other_view(rng, of, seen[chosen]), iter(range(len(seen)))
    made = of.at(
        position, _each_view(of.instructions[position], lambda v: new if next(count) == chosen else v)
    )
    return made if made.instructions != of.instructions else None


def _each_view(instruction: Any, change: Callable[[View], View]) -> Any:
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


def exchange_arguments(rng: Random, of: Draft) -> Draft | None:
    """Two arguments, results or outputs change places, or one that is no tensor is another value."""
    position = rng.choice(of.places(Run, Return))
    one = of.instructions[position]
    if isinstance(one, Return):
        if len(one.outputs) < 2:
            return None
        outputs = list(one.outputs)
        a, b = rng.sample(range(len(outputs)), 2)
        outputs[a], outputs[b] = outputs[b], outputs[a]
        return of.at(position, Return(one.op, tuple(outputs))) if tuple(outputs) != one.outputs else None
    run = _run(of, position)
    if rng.random() < 0.3 and len(run.results) > 1:
        first, second, *rest = run.results
        swapped = (Result(first.position, second.view), Result(second.position, first.view), *rest)
        return of.at(position, msgspec.structs.replace(run, results=swapped))
    if not run.arguments:
        return None
    arguments = list(run.arguments)
    number = rng.randrange(len(arguments))
    value = arguments[number]
    if isinstance(value, bool | int | float):
        arguments[number] = (not value) if isinstance(value, bool) else rng.choice((value + 1, -value, True))
    else:
        other = rng.randrange(len(arguments))
        arguments[number], arguments[other] = arguments[other], arguments[number]
    made = msgspec.structs.replace(run, arguments=tuple(arguments))
    return of.at(position, made) if repr(made) != repr(run) else None


# versions


def _changes(of: Draft) -> list[tuple[int, int]]:
    """(position, buffer) of every change in place."""
    found = []
    for position in of.places(Run):
        run = _run(of, position)
        op = of.graph.op(run.op)
        values = zip(
            (*op.arguments, *(value for _, value in op.keywords)),
            (*run.arguments, *(value for _, value in run.keywords)),
            strict=True,
        )
        for yours, mine in values:
            pairs = zip(views(yours), views(mine), strict=True)
            found += [(position, m.base) for y, m in pairs if y.base in op.mutates]
    return found


def read_too_late(rng: Random, of: Draft) -> Draft | None:
    """Move a reader, or a copy, from one side of a change in place to the other."""
    changes = _changes(of)
    if not changes:
        return None
    position, buffer = rng.choice(changes)
    readers = [
        k for k in of.places(Run, Copy, Return) if k != position and buffer in touched(of.instructions[k])
    ]
    if not readers:
        return None
    reader = rng.choice(readers)
    made = list(of.instructions)
    moved = made.pop(reader)
    made.insert(position if reader < position else position + rng.choice((0, 1)) * (reader < position), moved)
    return of.with_(made)


def again_too_late(rng: Random, of: Draft) -> Draft | None:
    """Run a kernel once more behind a change in place of what it reads or made."""
    changes = _changes(of)
    if not changes:
        return None
    position, buffer = rng.choice(changes)
    earlier = [k for k in of.places(Run) if k <= position and buffer in touched(of.instructions[k])]
    if not earlier:
        return None
    later = rng.choice((position + 1, rng.randrange(position + 1, len(of.instructions) + 1)))
    return _again(rng, of, rng.choice(earlier), min(later, len(of.instructions) - 1))


def read_another_copy(rng: Random, of: Draft) -> Draft | None:
    """Let one reader, or all from there on, look into another copy of the storage, or one of equal size."""
    position = rng.choice(of.places(Run, Return, Copy))
    allocs = of.allocs()
    read = [b for b in touched(of.instructions[position]) if b in allocs]
    if not read:
        return None
    buffer = rng.choice(read)
    same = [b for b, a in allocs.items() if b != buffer and a.storage == allocs[buffer].storage >= 0]
    like = [b for b, a in allocs.items() if b != buffer and a.bytes == allocs[buffer].bytes]
    others = same if same and rng.random() < 0.7 else like
    if not others:
        return None
    to = {buffer: rng.choice(others)}
    until = position + 1 if rng.random() < 0.5 else len(of.instructions)
    return of.with_(
        [_used(i, to) if position <= k < until else i for k, i in enumerate(of.instructions)]
    )  # fmt: skip


def copy_too_early(rng: Random, of: Draft) -> Draft | None:
    """Start a copy at another moment, in front of or behind what changes it."""
    copies = of.places(Copy)
    if not copies:
        return None
    made = list(of.instructions)
    moved = made.pop(rng.choice(copies))
    made.insert(rng.randrange(len(made) + 1), moved)
    return of.with_(made)


# waits


def drop_wait(rng: Random, of: Draft) -> Draft | None:
    """Leave a wait out."""
    waits = of.places(Sync)
    return of.at(rng.choice(waits)) if waits else None


def late_wait(rng: Random, of: Draft) -> Draft | None:
    """Wait later than before, most often behind the next use."""
    waits = of.places(Sync)
    if not waits:
        return None
    position = rng.choice(waits)
    made = list(of.instructions)
    wait = made.pop(position)
    uses = [k for k in range(position, len(made)) if wait.target in touched(made[k])]  # type: ignore[union-attr]
    later = uses[0] + 1 if uses and rng.random() < 0.7 else rng.randrange(position, len(made) + 1)
    made.insert(later, wait)
    return of.with_(made)


def other_wait(rng: Random, of: Draft) -> Draft | None:
    """Wait for another buffer, or before the copy starts, or for a copy that never starts."""
    waits = of.places(Sync)
    if not waits:
        return None
    position = rng.choice(waits)
    wait = of.instructions[position]
    assert isinstance(wait, Sync)
    starts = [k for k in of.places(Copy) if of.instructions[k].target == wait.target]  # type: ignore[union-attr]
    way = rng.randrange(3)
    if way == 0 or not starts:
        slow = [b for b, a in of.allocs().items() if a.space in (ARENA, *range(SLOWER, len(of.spaces)))]
        return of.at(position, Sync(rng.choice(slow)))
    if way == 1:
        return of.at(starts[-1])
    made = list(of.instructions)
    made.insert(starts[-1], made.pop(position))
    return of.with_(made)


FAMILIES: Final[dict[str, tuple[Mutator, ...]]] = {
    "offset": (move_offset, move_towards),
    "size": (change_size,),
    "space": (change_space, change_space, change_memory),
    "dropped or doubled": (drop, drop_again, double, run_again),
    "swapped pair": (swap, swap_runs),
    "wrong argument view": (change_view, change_view, exchange_arguments),
    "wrong version read": (read_too_late, again_too_late, read_another_copy, copy_too_early),
    "missing wait": (drop_wait, late_wait, other_wait),
}
"""Mutators by family."""

_IN_PLACE: Final = ("offset", "size", "space", "wrong argument view")


def mutate(rng: Random, family: str, graph: Graph, executable: Executable) -> Executable | None:
    """Damage an executable in the way of a family; None where this draw has nothing to change."""
    before = draft(graph, executable)
    made = rng.choice(FAMILIES[family])(rng, before)
    if made is None:
        return None
    way = rng.random()
    if family in _IN_PLACE:
        made = tidied(made) if family == "wrong argument view" and way < 0.5 else made
    elif way < 0.65:
        made = numbered(placed(tidied(made)))
    elif way < 0.95:
        made = numbered(placed(made))
    found = msgspec.structs.replace(executable, spaces=made.spaces, instructions=made.instructions)
    return None if found == executable else found
