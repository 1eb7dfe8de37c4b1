"""Damaged executables: eight families of small changes to a right one.

Every mutator takes a `Draft` and a random state, and returns the changed draft or None where there is
nothing to change in its way. `mutate` finishes it: as it stands, with buffers numbered anew, or with
releases put back where the normal form wants them too. The last is the hardest to refuse, because all
that is wrong is what was changed.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.executable.drafts import (
    FRESH,
    Draft,
    draft,
    each_alloc,
    each_view,
    lifetimes,
    numbered,
    placed,
    rebased,
    renamed,
    tidied,
    touched,
)
from tightrope.core import (
    Alloc,
    Bytes,
    Copy,
    Executable,
    Graph,
    Instruction,
    Result,
    Resume,
    Return,
    Run,
    Sync,
    View,
    round_up,
)
from tightrope.core.executable import ARENA, HEAP, SLOWER
from tightrope.core.values import views

ALIGNMENTS: Final = (-1, 1, 8, 63)


Mutator = Callable[[Random, Draft], Draft | None]


# offset, size, space


def _some_alloc(rng: Random, of: Draft, *, planned: float = 0.8) -> Alloc:
    every = list(of.allocs().values())
    inside = [alloc for alloc in every if alloc.space in (ARENA, HEAP)]
    return rng.choice(inside if inside and rng.random() < planned else every)


def _changed(of: Draft, alloc: Alloc, **fields: int) -> Draft | None:
    new = msgspec.structs.replace(alloc, **fields)
    if new == alloc:
        return None
    return each_alloc(of, lambda a: new if a.buffer == alloc.buffer else a)


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
    begins, ends = lifetimes(of.instructions)
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
    fresh = {e.buffer: FRESH + k for k, e in enumerate(run.inside) if isinstance(e, Alloc)}
    twin = renamed(run, fresh)
    rest = list(of.instructions[later:])
    kept = of.kept
    if rng.random() < 0.7:
        rest = [_used(i, fresh) for i in rest]
        kept = frozenset(fresh.get(b, b) for b in kept)
    return replace(of, instructions=(*of.instructions[:later], twin, *rest), kept=kept)


def _used(instruction: Instruction, fresh: dict[int, int]) -> Instruction:
    if isinstance(instruction, Copy):
        return Copy(fresh.get(instruction.source, instruction.source), instruction.target, instruction.engine)
    return rebased(instruction, lambda b: fresh.get(b, b))


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

    each_view(of.instructions[position], note)
    if not seen:
        return None
    chosen = rng.randrange(len(seen))
    new, count = _other_view(rng, of, seen[chosen]), iter(range(len(seen)))
    made = of.at(
        position, each_view(of.instructions[position], lambda v: new if next(count) == chosen else v)
    )
    return made if made.instructions != of.instructions else None


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
    assert isinstance(wait, Sync)
    uses = [k for k in range(position, len(made)) if wait.target in touched(made[k])]
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
