"""Lower a schedule: every step becomes instructions over buffers.

Idea        Walk the schedule once with the live copy of every storage. A run allocates what its op
            was measured to allocate; views of storages become views of the live buffers. Where the
            schedule frees a storage is not copied: a buffer ends right after the last instruction
            that touches it, which is never later. Where an input that an op may write over ends at its
            run, the run writes there and the buffer goes on as that of the result. Ops in fused stretches
            do not: what a compiled function makes, it allocates.
Guarantee   Equal graphs, schedules and offsets give equal executables, in the normal form of
            `tightrope.core.executable`. Whether the result is right is for the judge to say.
Complexity  Linear in the steps and their arguments.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NoReturn, TypeVar

from msgspec.structs import replace

from tightrope.core import (
    Alloc,
    Bytes,
    Compute,
    Copy,
    Executable,
    FingerprintError,
    Free,
    Fused,
    FusedStretch,
    Graph,
    Instruction,
    JudgeError,
    Machine,
    Offset,
    Op,
    PageIn,
    PageOut,
    Plan,
    PlanFileError,
    Release,
    Resume,
    Return,
    Run,
    Schedule,
    Space,
    Step,
    StorageId,
    Sync,
    View,
    Wait,
    fitted,
)
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER
from tightrope.core.values import EMPTY, Input, Result, rebased, views
from tightrope.lower.contract import contract
from tightrope.lower.pages import page_offsets
from tightrope.lower.writes import written

_UNLIMITED: Final[Bytes] = 2**62
_T = TypeVar("_T")


def lower(graph: Graph, what: Plan | Schedule, machine: Machine | None = None) -> Executable:
    """Turn a schedule, or a plan with its addresses, into instructions.

    Args:
        graph: that it was made for.
        what: to lower. Of a schedule, allocations get no addresses; see `place_at`.
        machine: alignment, slower tiers and copy engines; needed where something is paged.

    Raises:
        FingerprintError: the plan was made for another graph.
        PlanFileError: the plan has offsets for another number of allocations.
        JudgeError: a step frees or reads what is not live, makes a second copy, or names what the graph
            or the machine does not have.

    Example:
        >>> from tightrope.core import Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 100),))
        >>> lower(graph, Schedule((Compute(0), Free(0)))).instructions[1:3]
        (Run(op=0, target='a', inside=(Alloc(buffer=0, space=1, bytes=100, storage=0),)), Release(buffer=0))
    """
    if isinstance(what, Plan) and what.fingerprint != graph.fingerprint:
        raise FingerprintError(
            f"the plan was made for graph {what.fingerprint[:12]}, this one is {graph.fingerprint[:12]}: "
            "give the graph that was planned."
        )
    if machine is not None:
        graph = fitted(graph, machine.tiers[0].alignment)
    steps = (what.schedule if isinstance(what, Plan) else what).steps
    stretches = what.stretches if isinstance(what, Plan) else ()
    walk = _Lowering(graph, machine, _last_reads(graph, steps) - _fused(graph, steps, stretches))
    for position, step in enumerate(steps):
        walk.take(position, step)
    made = walk.finish()
    if stretches:
        made = contract(made, stretches)
    if not isinstance(what, Plan) or not what.placed:
        return made
    return place_at(made, what.offsets, arena=what.forecast.arena)


def place_at(executable: Executable, offsets: Sequence[Offset], *, arena: Bytes | None = None) -> Executable:
    """Give every allocation in fast memory that an op makes its address, and every page its own.

    Args:
        executable: without addresses.
        offsets: one per allocation in the arena or on the heap, in order; -1 on the heap.
        arena: capacity of the arena; default: the highest address.

    Raises:
        PlanFileError: there are not as many offsets as allocations.
    """
    if len(offsets) != (count := sum(1 for _ in planned(executable))):
        raise PlanFileError(
            f"the plan has {len(offsets)} offsets and its schedule makes {count} allocations: "
            "tightrope judge says what else is wrong with it."
        )
    given = iter(offsets)
    paged = page_offsets(executable)
    top = 0

    def placed(event: Instruction) -> Instruction:
        nonlocal top
        if not isinstance(event, Alloc) or event.space == CALLER:
            return event
        if event.space >= SLOWER:
            return replace(event, offset=paged[event.buffer])
        offset = next(given)
        if offset >= 0:
            top = max(top, offset + executable.charged(event))
        return Alloc(event.buffer, event.space, event.bytes, offset, event.storage)

    def moved(instruction: Instruction) -> Instruction:
        if not isinstance(instruction, Run | Fused) or not instruction.inside:
            return placed(instruction)
        inside = tuple(placed(event) for event in instruction.inside)
        return replace(instruction, inside=inside)

    instructions = tuple(moved(instruction) for instruction in executable.instructions)
    spaces = list(executable.spaces)
    spaces[ARENA] = replace(spaces[ARENA], capacity=top if arena is None else arena)
    return replace(executable, instructions=instructions, spaces=tuple(spaces), placed=True)


def planned(executable: Executable) -> list[Alloc]:
    """List the allocations that the runtime serves in fast memory, in order."""
    return [e for e in executable.flat() if isinstance(e, Alloc) and e.space in (ARENA, HEAP)]


def _last_reads(graph: Graph, steps: Sequence[Step]) -> set[int]:
    """Find the steps whose op may write over what it reads: that is freed before its next use."""
    freed: dict[StorageId, bool] = {}
    found: set[int] = set()
    for position in range(len(steps) - 1, -1, -1):
        match steps[position]:
            case Compute(number) if 0 <= number < len(graph.ops) + len(graph.variants):
                op = graph.op(number)
                if op.over >= 0 and freed.get(op.over, False):
                    found.add(position)
                freed.update(dict.fromkeys((*op.reads, *op.creates), False))
            case Free(storage, 0):
                freed[storage] = True
            case PageOut(storage) | PageIn(storage) | Wait(storage):
                freed[storage] = False
            case _:
                pass
    return found


def _fused(graph: Graph, steps: Sequence[Step], stretches: Sequence[FusedStretch]) -> set[int]:
    """Find the steps whose op runs inside a stretch, which makes its results in memory of its own."""
    if not stretches:
        return set()
    returns = {end - 1 for end in graph.boundaries}
    runs = [at for at, step in enumerate(steps) if isinstance(step, Compute) and step.op not in returns]
    return {at for stretch in stretches for at in runs[stretch.first : stretch.last]}


class _Lowering:
    """Instructions so far, the live buffer of every storage, and where each buffer was touched last."""

    def __init__(self, graph: Graph, machine: Machine | None, last_reads: Set[int]) -> None:
        self.graph, self.machine, self.last_reads = graph, machine, last_reads
        self.out: list[Instruction] = []
        self.live: dict[StorageId, int] = {}
        self.slow: dict[tuple[StorageId, int], int] = {}
        self.copies: dict[StorageId, tuple[int, int, bool]] = {}
        self.touched: list[int] = []
        self.ended: list[int] = []
        self.written: set[StorageId] = set()  # over which a result lies, and which the schedule frees later
        self.part_of: list[int] = []  # in which each buffer began
        self.part = 0
        self.at = "start"
        self._returns = {end - 1: part for part, end in enumerate(graph.boundaries)}
        self._events: dict[int, tuple[tuple[bool, int], ...]] = {}
        later = {v.base for part in graph.parts[1:] for given in part.inputs if (v := given.view)}
        first = {v.base for part in graph.parts[:1] for given in part.inputs if (v := given.view)}
        self._hold([s.id for s in graph.storages if s.external and (s.id in first or s.id not in later)])
        self._resume()

    # the caller's side

    def _hold(self, storages: Sequence[StorageId]) -> None:
        for storage in storages:
            size, home = self.graph.storages[storage].bytes, self.graph.storages[storage].home
            if home and (storage, home) not in self.slow:
                alloc = self._new(self._space(home), size, storage)
                self.slow[storage, home] = alloc.buffer
                self._put(alloc)
            elif not home and storage not in self.live:
                alloc = self._new(CALLER, size, storage)
                self.live[storage] = alloc.buffer
                self._put(alloc)

    def _resume(self) -> None:
        inputs: tuple[Input, ...] = ()
        if self.graph.parts:
            inputs = self.graph.parts[self.part].inputs
            self._hold([given.view.base for given in inputs if given.view and given.view.base != EMPTY])
            inputs = tuple(
                Input(given.name, None if given.view is None else self._given(given.view)) for given in inputs
            )
        self._put(Resume(self.part, inputs))

    def _return(self, op: int) -> None:
        outputs = self.graph.parts[self.part].outputs if self.graph.parts else ()
        self._put(Return(op, tuple(rebased(value, self._buffer) for value in outputs)))

    # steps

    def take(self, position: int, step: object) -> None:
        self.at = f"step {position}"
        match step:
            case Compute(op, drop):
                self._compute(op, drop, last=position in self.last_reads)
            case Free(storage, 0) if storage in self.written:
                self.written.remove(storage)
            case Free(storage, 0):
                self._end(storage, self._known(self.live, storage, "frees"))
            case Free(storage, tier):
                self._end_slow(storage, tier)
            case PageOut(storage, tier):
                self._page_out(storage, tier)
            case PageIn(storage, tier):
                self._page_in(storage, tier)
            case Wait(storage):
                self._wait(storage)
            case _:
                self._fail(f"{step!r} is no step")

    def _compute(self, number: int, drop: tuple[StorageId, ...], *, last: bool) -> None:
        if not 0 <= number < len(self.graph.ops) + len(self.graph.variants):
            known = len(self.graph.ops) + len(self.graph.variants)
            self._fail(f"runs op {number}; the graph has {known} ops and variants")
        op = self.graph.op(number)
        self.at += f", op {number} {op.describe()}"
        if number in self._returns:
            if drop:
                self._fail(f"drops {self._name(drop[0])}, which it does not create")
            self._return(number)
            self._touch(self._known(self.live, storage, "returns") for storage in op.reads)
            self.part = self._returns[number] + 1
            self._resume()
            return
        arguments = tuple(rebased(value, self._buffer) for value in op.arguments)
        keywords = tuple((name, rebased(value, self._buffer)) for name, value in op.keywords)
        reads = [self._known(self.live, storage, "reads") for storage in op.reads]
        run = Run(number, op.target, arguments, keywords, ns=op.ns)
        if last and not drop and self._write(op, run, reads):
            return
        inside, made = self._inside(op)
        results = tuple(Result(r.position, self._made(r.view, made)) for r in op.results)
        self.out.append(replace(run, results=results, inside=tuple(inside)))
        self._touch((*reads, *made.values()))
        for storage in drop:
            if storage not in made:
                self._fail(f"drops {self._name(storage)}, which it does not create or drops twice")
            self.ended.append(made.pop(storage))
        for storage, buffer in made.items():
            if storage in self.live:
                self._fail(f"creates a second live copy of {self._name(storage)}")
            self.live[storage] = buffer

    def _write(self, op: Op, run: Run, reads: Sequence[int]) -> bool:
        """Let an op write its result over the input that ends here, where its buffer began in this part."""
        result, buffer = op.results[0], self.live[op.over]
        if self.part_of[buffer] != self.part or op.over in self.copies or result.view.base in self.live:
            return False
        inside, made = self._inside(op, without=result.view.base)
        rest = tuple(Result(r.position, self._made(r.view, made)) for r in op.results[1:])
        alone = replace(run, results=rest, inside=tuple(inside))
        self.out.append(written(alone, replace(result.view, base=buffer)))
        self._touch((*reads, *made.values()))
        del self.live[op.over]
        self.live.update({result.view.base: buffer, **made})
        self.written.add(op.over)
        return True

    def _inside(
        self, op: Op, *, without: StorageId = -2
    ) -> tuple[list[Alloc | Release], dict[StorageId, int]]:
        allocations = self.graph.allocations(op)
        inside: list[Alloc | Release] = []
        made: dict[StorageId, int] = {}
        opened: dict[int, int] = {}
        for begins, number in self._order(op):
            if not begins:
                inside.append(Release(opened[number]))
                continue
            item = allocations[number]
            if item.storage == without:
                continue
            outside = item.storage >= 0 and self.graph.storages[item.storage].outside
            alloc = self._new(HEAP if outside else ARENA, item.bytes, item.storage)
            inside.append(alloc)
            opened[number] = alloc.buffer
            if item.storage >= 0:
                made[item.storage] = alloc.buffer
        return inside, made

    def _order(self, op: Op) -> tuple[tuple[bool, int], ...]:
        if op.id not in self._events:
            ticks: list[tuple[int, bool, int]] = []
            for number, allocation in enumerate(self.graph.allocations(op)):
                ticks.append((allocation.start, True, number))
                if allocation.end >= 0:
                    ticks.append((allocation.end, False, number))
            self._events[op.id] = tuple((begins, number) for _, begins, number in sorted(ticks))
        return self._events[op.id]

    # copies between tiers

    def _page_out(self, storage: StorageId, tier: int) -> None:
        source = self._known(self.live, storage, "pages out")
        self._idle(storage)
        if (storage, tier) not in self.slow:
            alloc = self._new(self._space(tier), self.graph.storages[storage].bytes, storage)
            self.slow[storage, tier] = alloc.buffer
            self._put(alloc)
        self._start(storage, source, self.slow[storage, tier], tier, inwards=False)

    def _page_in(self, storage: StorageId, tier: int) -> None:
        self._space(tier)
        if storage in self.live and storage not in self.copies:
            self._fail(f"pages in {self._name(storage)}, a second live copy")
        if (storage, tier) not in self.slow:
            self._fail(f"pages in {self._name(storage)}, of which tier {tier} holds no copy")
        self._idle(storage)
        alloc = self._new(ARENA, self.graph.storages[storage].bytes, storage)
        self._put(alloc)
        self.live[storage] = alloc.buffer
        self._start(storage, self.slow[storage, tier], alloc.buffer, tier, inwards=True)

    def _start(self, storage: StorageId, source: int, target: int, tier: int, *, inwards: bool) -> None:
        assert self.machine is not None
        engines = self.machine.tiers[tier].engines
        self.copies[storage] = (source, target, inwards)
        self._put(Copy(source, target, 0 if not engines else 2 * tier - 1 + (inwards and engines == 2)))

    def _idle(self, storage: StorageId) -> None:
        if storage in self.copies:
            self._fail(f"pages {self._name(storage)}, of which a copy is in flight already")

    def _wait(self, storage: StorageId) -> None:
        if storage not in self.copies:
            self._fail(f"waits for {self._name(storage)}, but no copy of it is in flight")
        source, target, inwards = self.copies[storage]
        del self.copies[storage]
        self._put(Sync(target))
        self._touch((source, target))
        if not inwards and self.live.get(storage) == source:
            self._end(storage, source)

    def _end_slow(self, storage: StorageId, tier: int) -> None:
        if (storage, tier) not in self.slow:
            self._fail(f"frees {self._name(storage)} in tier {tier}, which does not hold a copy of it")
        if self.graph.storages[storage].home == tier:
            self._fail(f"frees {self._name(storage)} in tier {tier}, where the caller holds it")
        self.ended.append(self.slow.pop((storage, tier)))

    def _space(self, tier: int) -> int:
        if self.machine is None or not 1 <= tier < len(self.machine.tiers):
            name = "no machine" if self.machine is None else f"machine {self.machine.name!r}"
            self._fail(f"pages to tier {tier} and {name} has no such tier: give a profile with a slower one")
        return SLOWER + tier - 1

    # buffers

    def _new(self, space: int, size: Bytes, storage: StorageId) -> Alloc:
        self.touched.append(len(self.out))
        self.part_of.append(self.part)
        return Alloc(len(self.touched) - 1, space, size, -1, storage)

    def _put(self, instruction: Instruction) -> None:
        self.out.append(instruction)
        match instruction:
            case Resume(_, inputs):
                self._touch(i.view.base for i in inputs if i.view is not None and i.view.base != EMPTY)
            case Return(_, outputs):
                self._touch(v.base for value in outputs for v in views(value) if v.base != EMPTY)
            case Copy(source, target):
                self._touch((source, target))
            case _:
                pass

    def _touch(self, buffers: Iterable[int]) -> None:
        at = len(self.out) - 1
        for buffer in buffers:
            self.touched[buffer] = at

    def _end(self, storage: StorageId, buffer: int) -> None:
        if self.graph.storages[storage].external and not self.graph.storages[storage].home:
            self._fail(f"frees {self._name(storage)}, which belongs to the caller")
        self.ended.append(buffer)
        del self.live[storage]

    def _buffer(self, view: View) -> int:
        return self._known(self.live, view.base, "reads")

    def _given(self, view: View) -> View:
        """Look into the buffer that the caller holds a storage in."""
        home = self.graph.storages[view.base].home if view.base != EMPTY else 0
        held = self.slow[view.base, home] if home else -1
        moved = rebased(view, lambda _: held) if home else rebased(view, self._buffer)
        assert isinstance(moved, View)
        return moved

    def _made(self, view: View, made: dict[StorageId, int]) -> View:
        moved = rebased(view, lambda one: made[one.base])
        assert isinstance(moved, View)
        return moved

    def _known(self, table: Mapping[StorageId, _T], key: StorageId, verb: str) -> _T:
        if key not in table:
            self._fail(f"{verb} {self._name(key)}, which is not live")
        return table[key]

    def _name(self, storage: StorageId) -> str:
        if not 0 <= storage < len(self.graph.storages):
            self._fail(f"names storage {storage}; the graph has {len(self.graph.storages)} storages")
        label = self.graph.storages[storage].label
        return f"storage {storage}" + (f" ({label})" if label else "")

    def _fail(self, what: str) -> NoReturn:
        raise JudgeError(f"schedule, {self.at}: {what}.")

    def finish(self) -> Executable:
        """Release every buffer that the schedule ends right after the last instruction that touches it."""
        self._return(-1)
        after: dict[int, list[int]] = {}
        for buffer in self.ended:
            after.setdefault(self.touched[buffer], []).append(buffer)
        instructions: list[Instruction] = []
        for position, instruction in enumerate(self.out):
            instructions.append(instruction)
            instructions.extend(Release(buffer) for buffer in sorted(after.get(position, ())))
        machine = self.machine
        tiers = () if machine is None else machine.tiers
        device = "cpu" if machine is None else machine.device
        fine = self.graph.alignment
        spaces = (
            Space("caller", _UNLIMITED, fine, 0, device),
            Space("arena", _UNLIMITED, fine, 0, device),
            Space("heap", _UNLIMITED, fine, 0, device),
            *(Space(t.name, t.bytes, t.alignment, k, device) for k, t in enumerate(tiers) if k),
        )
        name = "host" if machine is None else machine.name
        return Executable(self.graph.fingerprint, spaces, tuple(instructions), name, placed=False)
