"""Run an executable over symbols, byte by byte: slow, obvious, and without a line of the judge.

Idea        What a buffer holds is a symbol: the caller's memory has one each, and a kernel gives the symbol
            of (target, arguments, what they hold, state of the random streams). The graph is run once in
            base order; an executable is right if it hands over the same symbols and leaves the same behind.
            The arena is an array with the owner of every line of it.
Guarantee   None is returned only if every value that the caller can see is the one of the base order, no
            two live blocks share a byte, every kernel allocates as it was measured to, copies between tiers
            are awaited before they are relied on, and the bytes stay within what was promised.
Complexity  The product of instructions and bytes of their blocks.
Gaps        The order of releases, and how soon they come, does not matter here. Times are not looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np

from tightrope.core import (
    Alloc,
    Argument,
    Bytes,
    Copy,
    Executable,
    Flag,
    Graph,
    Items,
    Machine,
    Name,
    Op,
    OpId,
    Release,
    Resume,
    Return,
    Run,
    StorageId,
    Sync,
    View,
    round_up,
)
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER
from tightrope.core.graph import RETURN
from tightrope.core.values import EMPTY

_ORDERED: Final = Flag.RANDOM | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.OPAQUE
Symbol = int


class Wrong(Exception):
    """What an executable does wrong."""


@dataclass
class Outcome:
    """What a call of a kernel does.

    Attributes:
        results: position -> layout and symbol.
        changed: position of a view among the arguments -> symbol that its buffer holds afterwards.
        state: symbol of the random streams afterwards, -1 = as before.
        ops: of the graph that call it so.
    """

    results: dict[int, tuple[Any, Symbol]] = field(default_factory=dict)
    changed: dict[int, Symbol] = field(default_factory=dict)
    state: Symbol = -1
    ops: set[OpId] = field(default_factory=set)


@dataclass(frozen=True)
class Seen:
    """What the caller sees when a part returns: outputs, its own memory, the random streams."""

    outputs: tuple[Any, ...]
    own: tuple[tuple[StorageId, Symbol], ...]
    state: Symbol


def layout(view: View) -> tuple[Any, ...]:
    """Say how a view looks, whatever it looks into."""
    return (view.dtype, view.shape, view.strides, view.offset, view.bits, view.input)


def views_of(argument: Argument) -> Iterator[View]:
    """Iterate over the views in an argument that have bytes."""
    if isinstance(argument, View):
        if argument.base != EMPTY:
            yield argument
    elif isinstance(argument, Items):
        for item in argument.items:
            yield from views_of(item)


class Meaning:
    """The symbols of a graph in base order.

    Attributes:
        calls: what each call does, by target, arguments and what they hold.
        seen: per part, what the caller sees.
        final: what each storage holds at the end.
        state: of the random streams at the start.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[Any, Symbol] = {}
        self.calls: dict[Any, Outcome] = {}
        self.seen: list[Seen] = []
        self.state = state = self.symbol("state")
        held = {s.id: self.symbol(("caller", s.id)) for s in graph.storages if s.external}
        ends = {part.end - 1: number for number, part in enumerate(graph.parts[:-1])}
        for op in graph.ops:
            if op.target == RETURN:
                self._see(ends[op.id], held, state)
                continue
            before = dict(held)
            outcome = self._call(op, held, state)
            state = outcome.state if outcome.state >= 0 else state
            if op.variant >= 0:
                made = {r.view.base: outcome.results[r.position][1] for r in op.results}
                self._again(graph.op(op.variant), before | made)
        self._see(len(graph.parts) - 1, held, state)
        self.final = held

    def symbol(self, of: Any) -> Symbol:
        """Number whatever stands for a value."""
        return self._known.setdefault(of, len(self._known))

    def key(self, run: Run | Op, held: dict[int, Symbol], state: Symbol, *, changes: bool) -> Any:
        """What a call depends on; raises `KeyError` where a view looks into nothing."""
        values = (*run.arguments, *(value for _, value in run.keywords))
        shown = tuple(self.shown(value, held) for value in values)
        names = tuple(name for name, _ in run.keywords)
        bases = [view.base for value in values for view in views_of(value)]
        shared = tuple(map(bases.index, bases)) if changes else ()
        return run.target, shown, names, shared, state

    def shown(self, value: Argument, held: dict[int, Symbol]) -> Any:
        """Replace what a view looks into by its symbol."""
        if isinstance(value, View):
            return ("view", layout(value), -1 if value.base == EMPTY else held[value.base])
        if isinstance(value, Items):
            return ("items", tuple(self.shown(item, held) for item in value.items))
        if isinstance(value, Name):
            return ("name", value.kind, value.text)
        return (type(value).__name__, repr(value))

    def call_of(self, run: Run, op: Op, held: dict[int, Symbol], state: Symbol) -> Outcome | None:
        """Look up what a call does."""
        ordered = state if op.flags & _ORDERED else -1
        return self.calls.get(self.key(run, held, ordered, changes=bool(op.mutates)))

    def _call(self, op: Op, held: dict[int, Symbol], state: Symbol) -> Outcome:
        ordered = bool(op.flags & _ORDERED)
        key = self.key(op, held, state if ordered else -1, changes=bool(op.mutates))
        outcome = self.calls.setdefault(key, Outcome())
        outcome.ops.add(op.id)
        if ordered:
            outcome.state = self.symbol(("state", key))
        values = (*op.arguments, *(value for _, value in op.keywords))
        for position, view in enumerate(view for value in values for view in views_of(value)):
            if view.base in op.mutates:
                outcome.changed[position] = self.symbol(("changed", key, view.base))
        for storage in op.mutates:
            held[storage] = self.symbol(("changed", key, storage))
        for result in op.results:
            symbol = self.symbol(("result", key, result.position))
            outcome.results[result.position] = (layout(result.view), symbol)
            held[result.view.base] = symbol
        return outcome

    def _again(self, variant: Op, held: dict[int, Symbol]) -> None:
        key = self.key(variant, held, -1, changes=False)
        outcome = self.calls.setdefault(key, Outcome())
        outcome.ops.add(variant.id)
        for result in variant.results:
            outcome.results[result.position] = (layout(result.view), held[result.view.base])

    def _see(self, part: int, held: dict[int, Symbol], state: Symbol) -> None:
        outputs = self.graph.parts[part].outputs if self.graph.parts else ()
        own = tuple((s.id, held[s.id]) for s in self.graph.storages if s.external)
        self.seen.append(Seen(tuple(self.shown(value, held) for value in outputs), own, state))


def interpret(
    meaning: Meaning, executable: Executable, *, budget: Bytes, machine: Machine | None = None
) -> str | None:
    """Run an executable over symbols.

    Args:
        meaning: of the graph, with the machine's alignment.
        executable: with addresses.
        budget: bytes of fast memory promised: the caller's, the arena, and outside.
        machine: whose tiers it copies to.

    Returns:
        What is wrong with it, None = nothing.
    """
    try:
        _Interpreter(meaning, executable, budget, machine).run()
    except Wrong as wrong:
        return str(wrong)
    return None


class _Interpreter:
    """Memory, what it holds, and who has control."""

    def __init__(
        self, meaning: Meaning, executable: Executable, budget: Bytes, machine: Machine | None
    ) -> None:
        self.meaning, self.executable, self.budget, self.machine = meaning, executable, budget, machine
        self.graph = meaning.graph
        self.unit = self.graph.alignment
        self.live: dict[int, Alloc] = {}
        self.held: dict[int, Symbol] = {}
        self.own: dict[StorageId, int] = {}
        self.moving: dict[int, int] = {}
        self.moved: set[int] = set()
        self.num_buffers = self.part = 0
        self.inside = False
        self.state = meaning.state
        self.amount = [0] * len(executable.spaces)
        self.most = [0] * len(executable.spaces)
        self.inputs: list[View | None] = []
        self._spaces()
        self.owner = np.zeros(-(-executable.spaces[ARENA].capacity // self.unit), np.int32)

    def run(self) -> None:
        for position, instruction in enumerate(self.executable.instructions):
            self.at = position
            match instruction:
                case Alloc():
                    self._alloc(instruction)
                case Release(buffer):
                    self._release(buffer)
                case Run():
                    self._run(instruction)
                case Copy(source, target):
                    self._copy(source, target)
                case Sync(target):
                    self._sync(target)
                case Return():
                    self._return(instruction)
                case Resume():
                    self._resume(instruction)
        self._end()

    # memory

    def _spaces(self) -> None:
        spaces = self.executable.spaces
        tiers = () if self.machine is None else self.machine.tiers[1:]
        self.at = -1
        fast = [(name, self.unit, 0) for name in ("caller", "arena", "heap")]
        slow = [(tier.name, tier.alignment, number) for number, tier in enumerate(tiers, 1)]
        if [(space.name, space.alignment, space.tier) for space in spaces] != fast + slow:
            self._wrong("the memories are not those of the machine")
        for space, tier in zip(spaces[SLOWER:], tiers, strict=True):
            if space.capacity != tier.bytes:
                self._wrong(f"{space.name} has another size")
        if not 0 <= spaces[ARENA].capacity <= self.budget:
            self._wrong("the arena is larger than the budget, or less than nothing")

    def _page(self, alloc: Alloc, size: int) -> None:
        space = self.executable.spaces[alloc.space]
        if alloc.offset < 0 or alloc.offset % space.alignment or alloc.offset + size > space.capacity:
            self._wrong(f"page {alloc.buffer} has no aligned address, or leaves its tier")
        for other in self.live.values():
            end = other.offset + round_up(other.bytes, space.alignment)
            if other.space == alloc.space and other.offset < alloc.offset + size and alloc.offset < end:
                self._wrong(f"page {alloc.buffer} lies over page {other.buffer}")

    def _new(self, alloc: Alloc) -> None:
        if alloc.buffer != self.num_buffers:
            self._wrong(f"buffer {alloc.buffer} begins; {self.num_buffers} would be next")
        if not 0 <= alloc.space < len(self.executable.spaces):
            self._wrong("no such memory")
        if alloc.space in (CALLER, HEAP) and alloc.offset != -1:
            self._wrong("an address where the runtime or the caller chooses")
        self.num_buffers += 1
        size = round_up(alloc.bytes, self.executable.spaces[alloc.space].alignment)
        if alloc.space == ARENA and size:
            if alloc.offset < 0 or alloc.offset % self.unit:
                self._wrong(f"buffer {alloc.buffer} has no aligned address")
            if alloc.offset + size > self.executable.spaces[ARENA].capacity:
                self._wrong(f"buffer {alloc.buffer} leaves the arena")
            lines = self.owner[alloc.offset // self.unit : (alloc.offset + size) // self.unit]
            if lines.any():
                self._wrong(f"buffer {alloc.buffer} lies over buffer {lines[lines > 0][0] - 1}")
            lines[:] = alloc.buffer + 1
        if alloc.space >= SLOWER:
            self._page(alloc, size)
        self.live[alloc.buffer] = alloc
        self.amount[alloc.space] += size
        reached = alloc.offset + size if alloc.space >= SLOWER else 0
        self.most[alloc.space] = max(self.most[alloc.space], self.amount[alloc.space], reached)
        if alloc.space >= SLOWER and self.amount[alloc.space] > self.executable.spaces[alloc.space].capacity:
            self._wrong("a slower tier is full")

    def _gone(self, buffer: int) -> None:
        alloc = self.live.pop(buffer)
        self.held.pop(buffer, None)
        size = round_up(alloc.bytes, self.executable.spaces[alloc.space].alignment)
        self.amount[alloc.space] -= size
        if alloc.space == ARENA and size:
            self.owner[alloc.offset // self.unit : (alloc.offset + size) // self.unit] = 0

    def _alloc(self, alloc: Alloc) -> None:
        known = 0 <= alloc.storage < len(self.graph.storages)
        if not known:
            self._wrong("nothing that a storage holds is allocated")
        storage = self.graph.storages[alloc.storage]
        self._new(alloc)
        if alloc.space == CALLER:
            if self.inside or not storage.external or alloc.storage in self.own:
                self._wrong("the caller does not bring this now")
            if alloc.bytes != storage.bytes:
                self._wrong("the caller's memory has another size")
            self.own[alloc.storage] = alloc.buffer
            self.held[alloc.buffer] = self.meaning.symbol(("caller", alloc.storage))
        elif not self.inside:
            self._wrong("nobody allocates while the caller has control")
        elif alloc.space == HEAP or storage.external or storage.outside:
            self._wrong("what belongs to the caller is copied between tiers")

    def _release(self, buffer: int) -> None:
        if buffer not in self.live:
            self._wrong(f"buffer {buffer} is not there to be released")
        if self.live[buffer].space == CALLER:
            self._wrong("the caller's memory is released")
        self._still(buffer, "released")
        self._gone(buffer)

    def _still(self, buffer: int, verb: str) -> None:
        if any(buffer in pair for pair in self.moving.items()):
            self._wrong(f"buffer {buffer} is {verb} while it is being copied")

    # kernels

    def _run(self, run: Run) -> None:
        if not self.inside:
            self._wrong("nobody runs anything while the caller has control")
        if not 0 <= run.op < len(self.graph.ops) + len(self.graph.variants):
            self._wrong("no such op")
        op = self.graph.op(run.op)
        values = (*run.arguments, *(value for _, value in run.keywords))
        bases = [view for value in values for view in views_of(value)]
        self._readable(bases)
        outcome = self.meaning.call_of(run, op, self.held, self.state)
        if outcome is None or op.id not in outcome.ops:
            self._wrong(f"the graph has no such call: {run.target}")
        for position in outcome.changed:
            self._still(bases[position].base, "changed")
        opened = self._inside(run, op)
        for position, symbol in outcome.changed.items():
            self.held[bases[position].base] = symbol
        self.state = outcome.state if outcome.state >= 0 else self.state
        storage_at = {result.position: result.view.base for result in op.results}
        for result in run.results:
            if outcome.results.get(result.position, (None,))[0] != layout(result.view):
                self._wrong(f"result {result.position} does not look like that")
            if result.view.base != opened[storage_at[result.position]]:
                self._wrong(f"result {result.position} lies in another buffer")
            self.held[result.view.base] = outcome.results[result.position][1]

    def _inside(self, run: Run, op: Op) -> dict[StorageId, int]:
        events = list(run.inside)
        opened: dict[int, int] = {}
        made: dict[StorageId, int] = {}
        allocations = self.graph.allocations(op)
        for tick in range(max((max(a.start, a.end) for a in allocations), default=-1) + 1):
            for number, item in enumerate(allocations):
                if item.end == tick:
                    event = events.pop(0) if events else None
                    if not isinstance(event, Release) or event.buffer != opened[number]:
                        self._wrong("the kernel releases something else")
                    self._gone(event.buffer)
            for number, item in enumerate(allocations):
                if item.start == tick:
                    event = events.pop(0) if events else None
                    if not isinstance(event, Alloc) or event.bytes != item.bytes:
                        self._wrong("the kernel allocates something else")
                    if event.space not in (ARENA, HEAP) or event.storage != item.storage:
                        self._wrong("the kernel allocates elsewhere")
                    outside = item.storage >= 0 and self.graph.storages[item.storage].outside
                    if outside and event.space != HEAP:
                        self._wrong("the caller gets memory of the arena")
                    self._new(event)
                    opened[number] = event.buffer
                    if item.storage >= 0:
                        made[item.storage] = event.buffer
        if events:
            self._wrong("the kernel allocates less")
        return made

    def _readable(self, views: list[View]) -> None:
        for view in views:
            if view.base not in self.live or view.base not in self.held:
                self._wrong(f"buffer {view.base} holds nothing that can be read")
            if view.base in self.moving:
                self._wrong(f"buffer {view.base} is read before its copy has arrived")
            if view.input >= 0:
                given = self.inputs[view.input] if view.input < len(self.inputs) else None
                if given is None or given.base != view.base:
                    self._wrong(f"input {view.input} is other memory")

    # copies between tiers

    def _copy(self, source: int, target: int) -> None:
        if not self.inside or source not in self.live or target not in self.live:
            self._wrong("a copy of what is not there")
        if source not in self.held or source in self.moving:
            self._wrong("a copy of what holds nothing yet")
        one, other = self.live[source], self.live[target]
        if {one.space, other.space} != {ARENA, max(one.space, other.space)} or one.space == other.space:
            self._wrong("no engine copies there")
        if max(one.space, other.space) < SLOWER or other.bytes < one.bytes:
            self._wrong("no engine copies there, or it does not fit")
        self._still(target, "overwritten")
        self.moving[target] = source

    def _sync(self, target: int) -> None:
        if not self.inside or target not in self.live or not (target in self.moving or target in self.moved):
            self._wrong("nothing to wait for")
        if target in self.moving:
            self.held[target] = self.held[self.moving.pop(target)]
            self.moved.add(target)

    # the caller

    def _resume(self, resume: Resume) -> None:
        parts = self.graph.parts
        if self.inside or resume.part != self.part:
            self._wrong("another part begins")
        self.inside = True
        given = parts[self.part].inputs if parts else ()
        if len(given) != len(resume.inputs):
            self._wrong("the caller hands over other inputs")
        for mine, other in zip(resume.inputs, given, strict=True):
            if mine.name != other.name or (mine.view is None) != (other.view is None):
                self._wrong("the caller hands over other inputs")
            if mine.view is not None and other.view is not None:
                base = EMPTY if other.view.base == EMPTY else self.own.get(other.view.base, -2)
                if layout(mine.view) != layout(other.view) or mine.view.base != base:
                    self._wrong("the caller hands over other inputs")
            self.inputs.append(mine.view)

    def _return(self, handed: Return) -> None:
        parts = self.graph.parts
        last = self.part + 1 >= len(parts)
        if not self.inside or handed.op != (-1 if last else parts[self.part].end - 1):
            self._wrong("another hand-over")
        self._readable([view for value in handed.outputs for view in views_of(value)])
        self.inside = False
        outputs = tuple(self.meaning.shown(value, self.held) for value in handed.outputs)
        wanted = self.meaning.seen[self.part]
        if outputs != wanted.outputs:
            self._wrong("the caller gets other outputs")
        if any(s in self.own and self.held[self.own[s]] != symbol for s, symbol in wanted.own):
            self._wrong("the caller's memory holds something else")
        if self.state != wanted.state:
            self._wrong("the random streams are elsewhere")
        self.part += 1

    def _end(self) -> None:
        if self.inside or self.part != max(1, len(self.graph.parts)):
            self._wrong("the end is not reached")
        if self.moving:
            self._wrong("a copy is still under way")
        if sorted(self.own) != [s.id for s in self.graph.storages if s.external]:
            self._wrong("some of the caller's memory is not counted")
        left = sorted(alloc.storage for alloc in self.live.values() if alloc.space != CALLER)
        if left != [s.id for s in self.graph.storages if s.resident_at_end and not s.external]:
            self._wrong("other things are left behind")
        for buffer, alloc in self.live.items():
            if self.held.get(buffer) != self.meaning.final[alloc.storage]:
                self._wrong(f"storage {alloc.storage} ends with another value")
        total = self.executable.spaces[ARENA].capacity + self.most[HEAP] + self.most[CALLER]
        if total > self.budget:
            self._wrong(f"{total} bytes are taken of {self.budget}")

    def _wrong(self, what: str) -> NoReturn:
        raise Wrong(f"instruction {self.at}: {what}")
