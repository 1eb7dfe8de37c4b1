"""What a step takes if some of its modules are computed again: a walk over its tape.

Idea        Outside of the chosen modules a storage lives while Python or autograd holds it. Inside, what
            autograd saves is not held: the arguments of the module are, and the generator's state. At the
            first save that the backward asks for, the module runs again up to its last save, and what it
            saves lives until the backward has used it. Results that a selective policy keeps live from
            the first run to the second, which does not compute them.
Source      torch.utils.checkpoint without reentrant autograd, create_selective_checkpoint_contexts.
Guarantee   The order of allocations and releases is that of the step, with kernels' temporaries.
Complexity  Linear in the events of the step and of what runs again.
Gaps        A save that no backward asks for goes with the one before it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tightrope.core import Bytes, Nanoseconds, Op, OpId, Phase, StorageId
from tightrope_export.values.form import Form, FormPromise
from tightrope_export.values.tape import Mark, StepTape

RANDOM_STATE: Final[Bytes] = 5_056
"""Bytes of the CPU generator's state; a multiple of 64."""
_Key: TypeAlias = tuple[int, int]
"""A storage, and the call that made it again, or -1."""


class CheckpointCosts(NamedTuple):
    """Time of torch's own work, on top of kernels.

    Attributes:
        region: of a module that runs again.
        save: of what autograd saves in it.
        policy: of an op under a selective policy, in both runs.
        op: of an op in both directions of a plain step, where Python does little.
        python: of an op of a forward.
    """

    region: Nanoseconds = 0
    save: Nanoseconds = 0
    policy: Nanoseconds = 0
    op: Nanoseconds = 0
    python: Nanoseconds = 0


FREE_OF_CHARGE: Final = CheckpointCosts()


@dataclass(slots=True)
class CallExtent:
    """One call of a module that may be computed again.

    Attributes:
        call: its number.
        stop: position of the event at which a second run stops: that of its last save.
        saves: numbers of its saves.
        ops: its ops, in order.
        names: of each op, (name, number among those of that name).
    """

    call: int
    stop: int
    saves: tuple[int, ...]
    ops: tuple[OpId, ...]
    names: dict[tuple[str, int], OpId]


class Walker:
    """Prepares a tape, then answers for forms.

    Args:
        tape: of the step.
        costs: of torch's own work.
    """

    def __init__(self, tape: StepTape, costs: CheckpointCosts = FREE_OF_CHARGE) -> None:
        self.tape, self.costs = tape, costs
        self.sizes = tuple(storage.size for storage in tape.graph.storages)
        self.inside = tuple(_inside(tape, op) for op in tape.graph.ops)
        self.extents = tuple(_extent(tape, number) for number in range(len(tape.calls)))
        self.by_path: dict[str, list[int]] = {}
        for number, call in enumerate(tape.calls):
            self.by_path.setdefault(call.path, []).append(number)
        self.released = _releases(tape)
        late = sum(op.phase is Phase.BACKWARD for op in tape.graph.ops)
        self.around = costs.python * (len(tape.graph.ops) - late) + costs.op // 2 * late
        self._known: dict[Form, FormPromise] = {}

    def promise(self, form: Form) -> FormPromise:
        """Tell what a step takes if a form is applied."""
        if form not in self._known:
            walk = _FormWalk(self, form)
            walk.run()
            again = tuple(sorted(walk.again.items()))
            base = self.tape.base_ns + self.around
            self._known[form] = FormPromise(
                walk.peak, self.tape.persistent, base + walk.ns, base, again, walk.held, walk.saved
            )
        return self._known[form]

    def statistics(self, path: str) -> dict[str, tuple[tuple[str, StorageId], ...]]:
        """Buffers that a module and those inside of it write, by the paths of their owners."""
        return {
            owner: names
            for owner, names in self.tape.buffers.items()
            if owner == path or owner.startswith(f"{path}.")
        }


def _inside(tape: StepTape, op: Op) -> tuple[Bytes, tuple[StorageId, ...]]:
    """The most bytes while an op runs, above those before it, and the storages that it leaves."""
    at: Counter[int] = Counter()
    freed: Counter[int] = Counter()
    alignment = max(tape.graph.alignment, 1)
    for one in tape.graph.allocations(op):
        size = -(-one.bytes // alignment) * alignment
        at[one.start] += size
        if one.end >= 0:
            freed[one.end] += size
    now = most = 0
    for tick in sorted({*at, *freed}):
        now += at[tick] - freed[tick]
        most = max(most, now)
    return most, op.creates


def _extent(tape: StepTape, number: int) -> CallExtent:
    call, saves, ops = tape.calls[number], [], []
    names: dict[tuple[str, int], OpId] = {}
    counts: Counter[str] = Counter()
    stop = call.start
    for at in range(call.start, call.end):
        kind, one = tape.events[at]
        if kind is Mark.PACK:
            saves.append(one)
            stop = at
        elif kind is Mark.OP:
            target = tape.graph.ops[one].target
            names[target, counts[target]] = one
            counts[target] += 1
            ops.append(one)
    return CallExtent(number, stop, tuple(saves), tuple(ops), names)


def _releases(tape: StepTape) -> dict[int, int]:
    """For saves that no backward asks for, the save with which they go."""
    asked = {one for kind, one in tape.events if kind is Mark.RELEASE}
    near, last = {}, -1
    for number in range(len(tape.saves)):
        if number in asked:
            last = number
        elif last >= 0:
            near[number] = last
    return near


@dataclass(slots=True)
class _OpenCall:
    """A module whose saves are not held."""

    extent: CallExtent
    kept: dict[OpId, tuple[StorageId, ...]]
    selective: bool
    left: int
    statistics: Bytes
    again: bool = False
    saved: dict[int, _Key] = field(default_factory=dict)
    cached: list[StorageId] = field(default_factory=list)


class _FormWalk:
    """State of one walk."""

    def __init__(self, walker: Walker, form: Form) -> None:
        self.walker, self.tape = walker, walker.tape
        self.now = self.peak = self.held = 0
        self.ns: Nanoseconds = 0
        self.saved = len(self.tape.saves)
        self.holds: dict[_Key, int] = {}
        self.again: Counter[str] = Counter()
        self.open: dict[int, _OpenCall] = {}
        self.of_save: dict[int, _OpenCall] = {}
        self.policy: dict[OpId, _OpenCall] = {}
        self.with_: dict[int, list[int]] = {}
        for late, early in walker.released.items():
            self.with_.setdefault(early, []).append(late)
        for region in form:
            for number in walker.by_path.get(region.path, ()):
                self._prepare(walker.extents[number], dict.fromkeys(region.saved), region.path)

    def _prepare(self, extent: CallExtent, saved: Mapping[tuple[str, int], None], path: str) -> None:
        kept = {extent.names[name]: self.tape.graph.ops[extent.names[name]].creates for name in saved}
        buffers = [one for names in self.walker.statistics(path).values() for _, one in names]
        copies = sum(self.walker.sizes[storage] for storage in buffers)
        if buffers:
            self.again["aten.clone.default"] += len(buffers)
        found = _OpenCall(extent, kept, bool(saved), len(extent.saves), copies)
        self.open[extent.call] = found
        self.of_save.update(dict.fromkeys(extent.saves, found))
        self.policy.update(dict.fromkeys(kept, found))
        self.saved += self.tape.calls[extent.call].places - len(extent.saves)
        costs, num = self.walker.costs, len(extent.ops)
        self.ns += costs.region + costs.save * len(extent.saves) + costs.python * num
        self.ns += costs.policy * num if saved else 0

    def run(self) -> None:
        for at, (kind, number) in enumerate(self.tape.events):
            if at == self.tape.turn:
                self.held = self.now
            match kind:
                case Mark.OP:
                    self.op(number)
                case Mark.FREE:
                    self.drop((number, -1))
                case Mark.PACK:
                    if number not in self.of_save and self.tape.saves[number] >= 0:
                        self.hold((self.tape.saves[number], -1))
                case Mark.UNPACK:
                    found = self.of_save.get(number)
                    if found is not None and not found.again:
                        self.run_again(found)
                case Mark.RELEASE:
                    for one in (number, *self.with_.get(number, ())):
                        self.release(one)
                case Mark.ENTER:
                    if number in self.open:
                        self.enter(number)

    def add(self, size: Bytes) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def hold(self, key: _Key) -> None:
        """Hold a storage once more; what nobody holds is gone, or the caller's."""
        if key in self.holds:
            self.holds[key] += 1

    def drop(self, key: _Key) -> None:
        count = self.holds.get(key)
        if count == 1:
            del self.holds[key]
            self.now -= self.walker.sizes[key[0]]
        elif count is not None:
            self.holds[key] = count - 1

    def make(self, op: OpId, call: int) -> None:
        most, creates = self.walker.inside[op]
        self.peak = max(self.peak, self.now + most)
        for storage in creates:
            self.holds[storage, call] = 1
            self.add(self.walker.sizes[storage])

    def op(self, number: OpId) -> None:
        self.make(number, -1)
        keeper = self.policy.get(number)
        if keeper is not None:
            for storage in keeper.kept[number]:
                self.hold((storage, -1))
                keeper.cached.append(storage)

    def enter(self, call: int) -> None:
        for storage in self.tape.calls[call].inputs:
            self.hold((storage, -1))
        self.add(RANDOM_STATE)

    def run_again(self, found: _OpenCall) -> None:
        """Run a module up to its last save, and hold what it saves."""
        found.again = True
        call = found.extent.call
        self.add(RANDOM_STATE + found.statistics)
        where: dict[StorageId, _Key] = {}
        alive: dict[_Key, int] = {}
        for kind, number in self.tape.events[self.tape.calls[call].start : found.extent.stop + 1]:
            if kind is Mark.OP:
                op = self.tape.graph.ops[number]
                if number in found.kept:
                    for storage in op.creates:
                        where[storage] = storage, -1
                        alive[storage, -1] = 1  # what was kept for this run is now held by it
                        found.cached.remove(storage)
                    continue
                self.make(number, call)
                self.ns += op.ns
                self.again[op.target] += 1
                for storage in op.creates:
                    where[storage] = storage, call
                    alive[storage, call] = 1
            elif kind is Mark.FREE and number in where and alive.pop(where[number], 0):
                self.drop(where[number])
            elif kind is Mark.PACK and (storage := self.tape.saves[number]) >= 0:
                key = where.get(storage, (storage, -1))
                self.hold(key)
                self.hold(key)  # by the graph of this run
                found.saved[number] = key
        for key in alive:
            self.drop(key)
        for key in found.saved.values():
            self.drop(key)
        self.now -= RANDOM_STATE

    def release(self, number: int) -> None:
        found = self.of_save.get(number)
        if found is None:
            if self.tape.saves[number] >= 0:
                self.drop((self.tape.saves[number], -1))
            return
        if number in found.saved:
            self.drop(found.saved.pop(number))
        found.left -= 1
        if not found.left:
            self.close(found)

    def close(self, found: _OpenCall) -> None:
        """Let go of what was held for a second run."""
        for storage in (*self.tape.calls[found.extent.call].inputs, *found.cached):
            self.drop((storage, -1))
        self.now -= RANDOM_STATE + (found.statistics if found.again else 0)
