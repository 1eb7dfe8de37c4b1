"""Walk an executable and refuse the first instruction that breaks a rule.

Idea        Keep the live buffer of every storage, the version that it holds, and the first op of the
            base order that has not run. Every instruction either keeps the rules or names itself.
Guarantee   An executable that passes calls, for every run, the kernel of an op of the graph with that
            op's arguments, on buffers that hold the values that the base order gives them; hands over
            what the graph says; releases every buffer right after its last use; leaves exactly the
            resident storages behind; and holds at every tick the bytes returned.
Complexity  Linear in the instructions and their arguments.
Gaps        Storages that the caller holds in fast memory cannot be copied between tiers. What a kernel
            computes is not looked at.
"""

from tightrope.core import (
    Alloc,
    Announce,
    Copy,
    Executable,
    Flag,
    Fused,
    Graph,
    Instruction,
    Machine,
    Op,
    Release,
    Resume,
    Return,
    Run,
    StorageId,
    Sync,
)
from tightrope.core.executable import ARENA, HEAP, SLOWER
from tightrope.core.graph import RETURN
from tightrope.core.values import INNER
from tightrope.judge.arguments import bases, same_arguments, same_inputs, same_outputs, same_results
from tightrope.judge.books import Books
from tightrope.judge.footprint import Interval, Walk
from tightrope.judge.needs import inside
from tightrope.judge.transfers import Transfer
from tightrope.judge.versions import runs_once
from tightrope.judge.writes import plain, wrong_write


def walk_executable(graph: Graph, executable: Executable, machine: Machine | None = None) -> Walk:
    """Walk the instructions of an executable of a well-formed graph, one by one.

    Args:
        graph: what it computes, fitted to the alignment of its arena.
        executable: any.
        machine: its tiers and copy engines; needed where something is copied.

    Returns:
        The memory that it takes and its time.

    Raises:
        JudgeError: names the instruction, the op and the storage of the first broken rule.
    """
    walk = _Walker(graph, executable, machine)
    for position, instruction in enumerate(executable.instructions):
        walk.take(position, instruction)
    return walk.finish()


class _Walker(Books):
    """State of one walk."""

    def take(self, position: int, instruction: Instruction) -> None:
        self.op, self.position = None, position
        if self.over and not isinstance(instruction, Release):
            self._fail("comes after the end")
        if isinstance(instruction, Release):
            self._release(instruction.buffer)
            return
        if self.unread:
            self._fail(f"a second live copy of {self._name(self.holds[self.unread[0]])} is kept")
        self.last, self.released = position, -1
        match instruction:
            case Alloc():
                self._alloc(instruction)
            case Run():
                self._run(instruction)
            case Fused():
                self._fused(instruction)
            case Copy(source, target):
                self._copy(instruction, source, target)
            case Sync(target):
                self._sync(target)
            case Announce():
                self._announce(instruction)
            case Return():
                self._return(instruction)
            case Resume():
                self._resume(instruction)
            case _:
                self._fail("concerns other ranks: judge all of them together, with judge_ranks")

    # kernels

    def _run(self, run: Run) -> None:
        op, first, over = self._op_of(run)
        made = self._inside(run, op, first=first, over=over)
        self._ran(run, op, made, first=first)
        self._spend(op.ns)

    def _op_of(self, run: Run) -> tuple[Op, bool, int]:
        """Find the op that a run calls, whether for the first time, and the buffer it writes over, or -1."""
        known = len(self.graph.ops) + len(self.graph.variants)
        if not 0 <= run.op < known:
            self._fail(f"runs op {run.op}; the graph has {known} ops and variants")
        op = self.graph.op(run.op)
        self.op = op
        if not self.inside or op.target == RETURN:
            self._fail("runs while the caller has control" if not self.inside else "is no kernel")
        first = op.id == self.next_base < len(self.graph.ops)
        if not first:
            self._check_again(op)
        elif op.id >= self._end_of_part():
            self._fail("control does not go to the caller before it")
        for storage in op.reads:
            self._check_read(op, storage)
        over = self._check_write(run, op) if run.target != op.target and op.over >= 0 else -1
        called = run if over < 0 else plain(run)
        if called.target != op.target or run.ns != op.ns:
            self._fail(f"calls {run.target} for {run.ns} ns; the op is {op.target}, {op.ns} ns")
        if wrong := same_arguments(called, op, self.live):
            self._fail(wrong)
        return op, first, over

    def _ran(self, run: Run, op: Op, made: dict[StorageId, int], *, first: bool) -> None:
        if wrong := same_results(run, op, made):
            self._fail(wrong)
        for storage in op.mutates:
            self.version[self.live[storage]] += 1
        self.next_base += first

    def _fused(self, fused: Fused) -> None:
        """Let the ops of a stretch run on values, and keep what it allocates."""
        free: set[int] = set()
        for event in fused.inside:
            if isinstance(event, Release):
                if event.buffer not in free or self.allocs[event.buffer].storage >= 0:
                    self._fail(f"a fused stretch releases buffer {event.buffer}, which is no temporary of it")
                self._close(event.buffer)
                free.remove(event.buffer)
            else:
                outside = event.storage >= 0 and self.graph.storages[event.storage].outside
                if event.space != (HEAP if outside else ARENA):
                    self._fail(f"allocates buffer {event.buffer} in space {event.space}")
                self._open(event)
                free.add(event.buffer)
        inner: list[int] = []
        for run in fused.runs:
            op, first, over = self._op_of(run)
            pure = op.flags in (Flag.NONE, Flag.NEVER_RECOMPUTE)
            if not pure or op.mutates or over >= 0:
                self._fail("draws, changes, sends or writes over something: it runs alone")
            made = self._values(run, op, free, inner, first=first)
            self._ran(run, op, made, first=first)
        if free:
            self._fail(f"a fused stretch allocates buffer {min(free)} and fills it with nothing")
        self.live = {storage: base for storage, base in self.live.items() if base > INNER}
        self._spend(fused.ns)

    def _values(
        self, run: Run, op: Op, free: set[int], inner: list[int], *, first: bool
    ) -> dict[StorageId, int]:
        """Book what an op of a stretch makes: a buffer that waits for it, or the next value inside."""
        made: dict[StorageId, int] = {}
        for mine, yours in zip(run.results, op.results, strict=False):
            base, storage = mine.view.base, yours.view.base
            if base in free and self.allocs[base].storage == storage:
                free.remove(base)
                self._check_made(op, storage, first=True)
            elif base == INNER - len(inner):
                inner.append(base)
                self._check_made(op, storage, first=first)
                self.values[storage] += 1
            else:
                self._fail(f"makes {self._name(storage)} in buffer {base}, which does not wait for it")
            made[storage], self.version[base] = base, 0
            if storage not in self.live:
                self.live[storage] = base
        return made

    def _check_write(self, run: Run, op: Op) -> int:
        """Return the buffer that a run writes its result over."""
        buffer = self.live[op.over]
        if buffer <= INNER:
            self._fail(f"writes over {self._name(op.over)}, a value inside a fused stretch")
        if wrong := wrong_write(self.graph, run, op, buffer):
            self._fail(wrong)
        if self.allocs[buffer].space != ARENA or self.began[buffer] != self.part:
            self._fail(f"writes over {self._name(op.over)}, which the caller or an earlier part holds")
        if self.moves.moving(buffer, inwards_only=False) is not None:
            self._fail(f"writes over {self._name(op.over)} while a copy of it is in flight")
        if op.creates[0] in self.live:
            self._fail(f"creates a second live copy of {self._name(op.creates[0])}")
        return buffer

    def _write(self, op: Op, buffer: int) -> None:
        """From here on the buffer holds the first result, and nothing can read the input any more."""
        storage = op.creates[0]
        del self.live[op.over]
        self.live[storage], self.holds[buffer], self.version[buffer] = buffer, storage, 0
        self.copies[storage] += 1

    def _inside(self, run: Run, op: Op, *, first: bool, over: int) -> dict[StorageId, int]:
        allocations = self.graph.allocations(op)
        expected = inside(self.graph, op).events
        if over >= 0:  # what it writes over an input is not allocated
            self._write(op, over)
            expected = tuple(event for event in expected if allocations[event[1]].storage != op.creates[0])
        if len(run.inside) != len(expected):
            self._fail(f"has {len(run.inside)} allocations and releases inside; the op has {len(expected)}")
        opened: dict[int, int] = {}
        made: dict[StorageId, int] = {}
        for event, (begins, number) in zip(run.inside, expected, strict=True):
            item = allocations[number]
            if not begins:
                if not isinstance(event, Release) or event.buffer != opened[number]:
                    self._fail(f"does not release buffer {opened[number]} where its kernel does")
                self._close(event.buffer)
                continue
            outside = item.storage >= 0 and self.graph.storages[item.storage].outside
            if not isinstance(event, Alloc) or (event.bytes, event.storage) != (item.bytes, item.storage):
                self._fail(
                    f"does not allocate {item.bytes} bytes for storage {item.storage} where its kernel does"
                )
            if event.space != (HEAP if outside else ARENA):
                self._fail(f"allocates buffer {event.buffer} in space {event.space}")
            self._open(event)
            opened[number] = event.buffer
            if item.storage >= 0:
                made[item.storage] = event.buffer
        for storage, buffer in made.items():
            self._check_made(op, storage, first=first)
            self.version[buffer] = 0
            if storage in self.live:
                self.unread.append(buffer)
            else:
                self.live[storage] = buffer
        return made if over < 0 else {op.creates[0]: over, **made}

    def _check_made(self, op: Op, storage: StorageId, *, first: bool) -> None:
        if self.graph.storages[storage].external:
            self._fail(f"creates {self._name(storage)}, which belongs to the caller")
        if first and storage in self.live:
            self._fail(f"creates a second live copy of {self._name(storage)}")

    def _check_again(self, op: Op) -> None:
        if op.id >= len(self.graph.ops):
            base = self.base_of.get(op.id)
            if base is None:
                self._fail("no op names it as its recompute variant")
            if base.id >= self.next_base:
                self._fail(f"a variant of op {base.id}, which has not run yet")
            if op.mutates or not set(op.creates) <= set(base.creates):
                self._fail(f"a variant that changes or makes more than op {base.id}")
        else:
            base = op
            if op.id > self.next_base:
                self._fail(f"out of the base order: op {self.next_base} comes first")
            if runs_once(op):
                instead = f"; its variant is op {op.variant}" if op.variant >= 0 else ""
                self._fail(f"must not run twice{instead}")
        if self.graph.parts:
            own, here = self.graph.parts[self.graph.part_of(base.id)], self.graph.parts[self.part]
            if own.call != here.call:
                self._fail(f"of call {own.call} runs again in a part of call {here.call}")

    def _check_read(self, op: Op, storage: StorageId) -> None:
        buffer = self.live.get(storage)
        if buffer is None:
            self._fail(f"reads {self._name(storage)}, which is not live")
        moving = self.moves.moving(buffer, inwards_only=storage not in op.mutates)
        if moving is not None:
            verb = "changes" if storage in op.mutates and not moving.inwards else "reads"
            way = "in" if moving.inwards else "out"
            self._fail(f"{verb} {self._name(storage)} while its page-{way} is in flight: no sync came before")
        if buffer in self.announced:
            self._fail(f"reads {self._name(storage)}, which the caller may have changed: it was announced")
        have, need = self.version.get(buffer), self.versions.reads[op.id][storage]
        if have != need:
            self._fail(
                f"reads {self._name(storage)} after {have} changes in place; in the base order it has {need}"
            )
        if buffer > INNER:
            self.open[buffer] = self.position

    # copies between tiers

    def _copy(self, copy: Copy, source: int, target: int) -> None:
        if not self.inside:
            self._fail("copies while the caller has control")
        for buffer in (source, target):
            if buffer not in self.open:
                self._fail(f"copies buffer {buffer}, which is not live")
            if buffer in self.announced:
                self._fail(f"copies buffer {buffer}, which was announced")
        self._checked(lambda: self.moves.begin(copy, self._now_holds(source), self._now_holds(target)))
        self.open[source] = self.open[target] = self.position

    def _now_holds(self, buffer: int) -> Alloc:
        """The allocation of a buffer, with the storage that lies in it now."""
        alloc = self.allocs[buffer]
        return Alloc(buffer, alloc.space, alloc.bytes, alloc.offset, self.holds[buffer])

    def _sync(self, target: int) -> None:
        if not self.inside:
            self._fail("waits while the caller has control")
        if target not in self.open:
            self._fail(f"waits for buffer {target}, which is not live")
        found: list[tuple[int, Transfer]] = []
        self._checked(lambda: found.append(self.moves.end(target)))
        source, transfer = found[0]
        if transfer.inwards:
            self.version[target] = self.moves.contents[source]
        else:
            self.moves.contents[target] = self.version[source]
        self.open[source] = self.open[target] = self.position

    # the caller

    def _end_of_part(self) -> int:
        return self.graph.parts[self.part].end if self.graph.parts else len(self.graph.ops)

    def _resume(self, resume: Resume) -> None:
        if self.inside or resume.part != self.part:
            self._fail(f"part {resume.part} begins; the next one is {self.part}")
        self.inside = True
        given = self.graph.parts[self.part].inputs if self.graph.parts else ()
        if wrong := same_inputs(resume.inputs, given, {**self.live, **self.homes}):
            self._fail(wrong)
        for item in resume.inputs:
            if item.view is not None and item.view.base in self.open:
                self.open[item.view.base] = self.position

    def _announce(self, announce: Announce) -> None:
        parts = self.graph.parts
        own = parts[self.part] if parts else None
        first = next((part for part in parts if own is not None and part.call == own.call), None)
        if not self.inside or own is None or first is None or first is own:
            self._fail("announces gradients, and is in no backward")
        every, distinct = range(len(own.outputs)), set(announce.positions)
        if len(distinct) != len(announce.outputs) or not distinct <= set(every[: len(first.inputs)]):
            self._fail(f"announces outputs {announce.positions}; the call has {len(first.inputs)} inputs")
        wanted = tuple(own.outputs[position] for position in announce.positions)
        if wrong := same_outputs(announce.outputs, wanted, self.live):
            self._fail(wrong)
        self.announced.update(bases(announce.outputs))
        given = (first.inputs[position].view for position in announce.positions)
        self.announced.update(self.live[view.base] for view in given if view is not None)

    def _return(self, handed: Return) -> None:
        if not self.inside:
            self._fail("returns while the caller has control")
        self.announced.clear()
        last = self.part + 1 >= len(self.graph.parts)
        if last:
            if handed.op != -1:
                self._fail(f"returns by op {handed.op} at the end")
        else:
            self._hand_over(handed)
        given = self.graph.parts[self.part].outputs if self.graph.parts else ()
        if wrong := same_outputs(handed.outputs, given, self.live):
            self._fail(wrong)
        for buffer in bases(handed.outputs):
            self.open[buffer] = self.position
        self.inside, self.over = False, last
        self.part += not last

    def _hand_over(self, handed: Return) -> None:
        op = self.graph.ops[self._end_of_part() - 1]
        if handed.op != op.id or self.next_base != op.id:
            self._fail(f"op {op.id} hands over; this is op {handed.op}, and op {self.next_base} has not run")
        for storage in op.reads:
            self._check_read(op, storage)
        begin = self.graph.parts[self.part - 1].end if self.part else 0
        for made in self.graph.ops[begin : op.id]:
            for storage in made.creates:
                if self.graph.storages[storage].outside and storage not in self.live:
                    self._fail(f"{self._name(storage)} is not live when the caller receives it")
        for storage in op.mutates:
            self.version[self.live[storage]] += 1
        self.next_base += 1
        self._spend(op.ns)

    def finish(self) -> Walk:
        self.op, self.position = None, -1
        for target in self.moves.flying:
            self._fail(
                f"the copy of {self._name(self.allocs[target].storage)} between tiers is still in flight"
            )
        if self.unread:
            self._fail(f"a second live copy of {self._name(self.holds[self.unread[0]])} is kept")
        if self.next_base < len(self.graph.ops):
            self._fail(f"op {self.next_base} {self.graph.ops[self.next_base].describe()} never ran")
        if not self.over:
            self._fail("control never goes back to the caller")
        for buffer in self.open:
            alloc = self.allocs[buffer]
            if alloc.space >= SLOWER and self.homes.get(alloc.storage) != buffer:
                where = f"tier {alloc.space - SLOWER + 1}"
                self._fail(f"a copy of {self._name(alloc.storage)} is left over in {where}")
        for storage in self.graph.storages:
            if not storage.external:
                self._check_left(storage.id, resident=storage.resident_at_end)
            elif storage.home:
                self._check_home(storage.id)
            elif storage.id not in self.live:
                self._fail(f"the caller never brings {self._name(storage.id)}")
        ticks = len(self.profile)
        intervals = tuple(
            Interval(size, start, self.ends.get(k, ticks), alloc.storage, alloc.offset, alloc.space == HEAP)
            for k, (alloc, start, size) in enumerate(self.rows)
        )
        moved = tuple(self.moves.done)
        return Walk(
            intervals, tuple(self.profile), max(self.profile, default=0), self.outside_peak, self.moves.now,
            tuple(self.copies), tuple(self.values), moved, tuple(self.moves.peak) if moved else (),
            self.moves.joules(self.computing),
        )  # fmt: skip

    def _check_home(self, storage: StorageId) -> None:
        """The caller's copy in a slower tier has every change, and no copy in fast memory is left."""
        name, final = self._name(storage), self.versions.final[storage]
        if storage not in self.homes:
            self._fail(f"the caller never brings {name}")
        if storage in self.live:
            self._fail(f"{name} is left over: the caller holds it in a slower tier")
        if (have := self.moves.contents.get(self.homes[storage])) != final:
            self._fail(f"{name} ends after {have} changes in its home; the base order makes {final}")

    def _check_left(self, storage: StorageId, *, resident: bool) -> None:
        present = storage in self.live
        if present and not resident:
            self._fail(f"{self._name(storage)} is left over: it is not resident at the end")
        if resident and not present:
            self._fail(f"{self._name(storage)} is missing: it must be resident at the end")
        if present and self.version.get(self.live[storage]) != self.versions.final[storage]:
            self._fail(f"{self._name(storage)} was made again after it had been changed in place")
