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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tightrope.core import Bytes, Nanoseconds, OpId, Phase, StorageId
from tightrope.plan.model import event_peak
from tightrope_export.values.form import AgainRegion, Form, FormPromise
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


class CallExtent(NamedTuple):
    """One call of a module that may be computed again.

    Attributes:
        call: its number.
        stop: position of the event at which a second run stops: that of its last save.
        saves: numbers of its saves.
        names: its ops in order, by (name, number among those of that name).
    """

    call: int
    stop: int
    saves: tuple[int, ...]
    names: dict[tuple[str, int], OpId]


class Walker:
    """Prepares a tape, then answers for forms.

    Args:
        tape: of the step.
        costs: of torch's own work.
    """

    def __init__(self, tape: StepTape, costs: CheckpointCosts | None = None) -> None:
        graph = tape.graph
        costs = costs or CheckpointCosts()
        self.tape, self.costs = tape, costs
        self.sizes = tuple(storage.size for storage in graph.storages)
        self.inside = tuple(event_peak(graph, graph.allocations(op)) for op in graph.ops)
        self.extents = tuple(_extent(tape, number) for number in range(len(tape.calls)))
        self.by_path: dict[str, list[int]] = {}
        for number, call in enumerate(tape.calls):
            self.by_path.setdefault(call.path, []).append(number)
        self.released = _released(tape)
        self.persistent = sum(storage.size for storage in graph.storages if storage.external)
        late = sum(op.phase is Phase.BACKWARD for op in graph.ops)
        self.base_ns = graph.base_ns + costs.python * (len(graph.ops) - late) + costs.op // 2 * late
        self._known: dict[Form, FormPromise] = {}

    def promise(self, form: Form) -> FormPromise:
        """Tell what a step takes if a form is applied."""
        if form not in self._known:
            self._known[form] = _FormWalk(self, form).run()
        return self._known[form]

    def statistics(self, path: str) -> list[tuple[str, str, StorageId]]:
        """Buffers that a module and those inside of it write: owner inside of it, name, storage."""
        found = self.tape.buffers.items()
        inside = [(*key, one) for key, one in found if f"{key[0]}.".startswith(f"{path}.")]
        return [(owner[len(path) + 1 :], name, one) for owner, name, one in inside]


def _extent(tape: StepTape, number: int) -> CallExtent:
    call, counts = tape.calls[number], Counter[str]()
    events = tape.events[call.start : call.end]
    saves = [(at, one) for at, (kind, one) in enumerate(events, call.start) if kind is Mark.PACK]
    names: dict[tuple[str, int], OpId] = {}
    for op in (tape.graph.ops[one] for kind, one in events if kind is Mark.OP):
        names[op.target, counts[op.target]] = op.id
        counts[op.target] += 1
    stop = saves[-1][0] if saves else call.start
    return CallExtent(number, stop, tuple(one for _, one in saves), names)


def _released(tape: StepTape) -> dict[int, list[int]]:
    """For each save that the backward asks for: it, and those that it never asks for, which go with it."""
    asked = {one for kind, one in tape.events if kind is Mark.RELEASE}
    found: dict[int, list[int]] = {}
    last: list[int] = []
    for number in range(len(tape.saves)):
        if number in asked:
            last = found[number] = []
        last.append(number)
    return found


@dataclass(slots=True)
class _OpenCall:
    """A module whose saves are not held."""

    extent: CallExtent
    kept: frozenset[OpId]
    left: int
    statistics: Bytes
    again: bool = False
    saved: dict[int, _Key] = field(default_factory=dict)
    cached: list[StorageId] = field(default_factory=list)


class _FormWalk:
    """State of one walk."""

    def __init__(self, walker: Walker, form: Form) -> None:
        self.walker, self.tape = walker, walker.tape
        self.now = self.peak = self.held = self.ns = 0
        self.saved = len(self.tape.saves)
        self.holds: dict[_Key, int] = {}
        self.again: Counter[str] = Counter()
        self.open: dict[int, _OpenCall] = {}
        self.of_save: dict[int, _OpenCall] = {}
        self.policy: dict[OpId, _OpenCall] = {}
        for region in form:
            for number in walker.by_path.get(region.path, ()):
                self._prepare(walker.extents[number], region)

    def _prepare(self, extent: CallExtent, region: AgainRegion) -> None:
        costs, num = self.walker.costs, len(extent.names)
        buffers = [storage for _, _, storage in self.walker.statistics(region.path)]
        self.again["aten.clone.default"] += len(buffers)
        kept = frozenset(extent.names[name] for name in region.saved)
        found = _OpenCall(extent, kept, len(extent.saves), sum(self.walker.sizes[one] for one in buffers))
        self.open[extent.call] = found
        self.of_save.update(dict.fromkeys(extent.saves, found))
        self.policy.update(dict.fromkeys(kept, found))
        self.saved += self.tape.calls[extent.call].places - len(extent.saves)
        each = costs.python + (costs.policy if kept else 0)
        self.ns += costs.region + costs.save * len(extent.saves) + each * num

    def run(self) -> FormPromise:
        for at, (kind, number) in enumerate(self.tape.events):
            if at == self.tape.turn:
                self.held = self.now
            match kind:
                case Mark.OP:
                    self.make(number, -1)
                    if (keeper := self.policy.get(number)) is not None:
                        self.hold((storage, -1) for storage in self.tape.graph.ops[number].creates)
                        keeper.cached.extend(self.tape.graph.ops[number].creates)
                case Mark.FREE:
                    self.drop([(number, -1)])
                case Mark.PACK if number not in self.of_save:
                    self.hold([(self.tape.saves[number], -1)])
                case Mark.UNPACK if number in self.of_save and not self.of_save[number].again:
                    self.run_again(self.of_save[number])
                case Mark.RELEASE:
                    for save in self.walker.released[number]:
                        if (found := self.of_save.get(save)) is None:
                            self.drop([(self.tape.saves[save], -1)])
                        else:
                            self.release(found, save)
                case Mark.ENTER if number in self.open:
                    self.hold((storage, -1) for storage in self.tape.calls[number].inputs)
                    self.add(RANDOM_STATE)
        again, own, base = tuple(sorted((+self.again).items())), self.walker.persistent, self.walker.base_ns
        return FormPromise(self.peak, own, base + self.ns, base, again, self.held, self.saved)

    def add(self, size: Bytes) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def hold(self, keys: Iterable[_Key]) -> None:
        """Hold storages once more; what nobody holds is gone, or the caller's."""
        for key in keys:
            if key in self.holds:
                self.holds[key] += 1

    def drop(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            count = self.holds.pop(key, 0)
            if count > 1:
                self.holds[key] = count - 1
            elif count:
                self.now -= self.walker.sizes[key[0]]

    def make(self, op: OpId, call: int) -> None:
        self.peak = max(self.peak, self.now + self.walker.inside[op])
        for storage in self.tape.graph.ops[op].creates:
            self.holds[storage, call] = 1
            self.add(self.walker.sizes[storage])

    def run_again(self, found: _OpenCall) -> None:
        """Run a module up to its last save, and hold what it saves."""
        found.again = True
        call = found.extent.call
        self.add(RANDOM_STATE + found.statistics)
        where: dict[StorageId, _Key] = {}
        alive: dict[_Key, int] = {}
        for kind, number in self.tape.events[self.tape.calls[call].start : found.extent.stop + 1]:
            if kind is Mark.OP:
                op, kept = self.tape.graph.ops[number], number in found.kept
                if not kept:
                    self.make(number, call)
                    self.ns += op.ns
                    self.again[op.target] += 1
                for storage in op.creates:
                    where[storage] = key = storage, -1 if kept else call
                    alive[key] = 1
                    if kept:
                        found.cached.remove(storage)  # this run holds it now
            elif kind is Mark.FREE and number in where and alive.pop(where[number], 0):
                self.drop([where[number]])
            elif kind is Mark.PACK and (storage := self.tape.saves[number]) >= 0:
                key = where.get(storage, (storage, -1))
                self.hold([key, key])  # the second one by the graph of this run
                found.saved[number] = key
        self.drop([*alive, *found.saved.values()])
        self.now -= RANDOM_STATE

    def release(self, found: _OpenCall, save: int) -> None:
        self.drop([found.saved.pop(save, (-1, -1))])
        found.left -= 1
        if not found.left:  # nothing is held for a second run any longer
            inputs = self.tape.calls[found.extent.call].inputs
            self.drop((storage, -1) for storage in (*inputs, *found.cached))
            self.now -= RANDOM_STATE + (found.statistics if found.again else 0)
