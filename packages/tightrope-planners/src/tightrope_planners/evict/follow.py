"""Record every training step, know one again while it runs, and follow the plan that was made for it.

Idea       A step is known by its ops, one after another. A step that comes a second time is planned
           (`lookahead`) and rehearsed; from then on, as long as a step's ops are those of a planned one, what
           the plan says is made again before each op and evicted after it. The first op that differs from
           all planned steps ends that: the rest of the step runs as it would without any plan.
Guarantee  Steps that never repeat are run exactly as without plans. A plan changes who is evicted, never
           what is computed.
Complexity Per op: its storages. Per step that repeats: one planning.
Gaps       Steps are compared from their first op on. The last `_KEPT` different steps are known.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tightrope.core.units import Bytes, Nanoseconds, StorageId, round_up
from tightrope.run.evict.policies import COOP, Policy
from tightrope_planners.evict.log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd
from tightrope_planners.evict.lookahead import Directives, Slot

NEVER: Final = 2**61
"""When a storage is used next that is not used again in the step."""
TINY: Final[Bytes] = 64
"""What takes no more stays, as `kTiny` of ``evict_options.hpp`` says."""
_KEPT: Final = 8
"""Different steps that are remembered, the least recently met going first."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How a known step is run: the policy where nothing fits, what is planned, when storages are used."""

    policy: Policy
    directives: Directives = field(default_factory=Directives)
    uses: dict[Slot, tuple[Nanoseconds, ...]] = field(default_factory=dict)


class FollowedArena(Protocol):
    """What a follower needs of an arena."""

    @property
    def base(self) -> Nanoseconds:
        """The clock of first runs."""

    def forecast(self, storage: int, next_use: Nanoseconds) -> None:
        """Say when a storage is used next."""

    def resident(self, storage: int) -> bool:
        """Tell whether a storage has its bytes."""

    def recomputable(self, storage: int) -> bool:
        """Tell whether it can be made again."""

    def keep(self, storage: int) -> None:
        """Let the bytes of a storage stay when it is released."""

    def valid(self, storage: int) -> bool:
        """Tell whether the record exists."""


class StepRecord:
    """The events of a step, as a log; storages are numbered in the order in which the step meets them.

    Attributes:
        keys: what every op is, and on which sizes.
        wires: which versions of storages every op read.
        events: of the log.
        sizes: of its storages.
        outside: whether the arena holds each not.
        ids: numbers of those that are held now, by id in the arena.
        uses: when each version is read, since the step began.
        makers: events that made them.
    """

    def __init__(self) -> None:
        self.keys: list[Hashable] = []
        self.wires: list[tuple[Slot | None, ...]] = []
        self.events: list[LogEvent] = []
        self.sizes: list[Bytes] = []
        self.outside: list[bool] = []
        self.ids: dict[int, StorageId] = {}
        self.uses: dict[Slot, list[Nanoseconds]] = {}
        self.makers: dict[StorageId, int] = {}

    def number(self, identity: int, describe: Callable[[int], tuple[Bytes, bool]]) -> StorageId:
        """Number a storage that the step meets."""
        found = self.ids.get(identity)
        if found is None:
            found = self.ids[identity] = len(self.sizes)
            size, outside = describe(identity)
            self.sizes.append(size)
            self.outside.append(outside)
        return found

    def written(self, identity: int) -> None:
        """Note that an old version can be made again: what had no values can from its first write on."""
        at = self.makers.get(self.ids[identity], -1)
        made = self.events[at] if at >= 0 else None
        if isinstance(made, LoggedOp) and not made.recomputable and len(made.creates) == 1:
            self.events[at] = replace(made, recomputable=True)

    def log(self) -> EvictionLog:
        """Make a log of it."""
        return EvictionLog("step", tuple(self.sizes), tuple(self.outside), (*self.events, StepEnd()))


@dataclass(slots=True, eq=False)
class _KnownStep:
    """A step that came before; ``lookahead`` is there once it has come twice."""

    keys: list[Hashable]
    wires: list[tuple[Slot | None, ...]]
    lookahead: Lookahead | None = None
    tried: bool = False


class Follower:
    """Watch the ops of a loop, and steer its arena where a step is known.

    Attributes:
        record: the step at hand so far.
        planned_steps: that were followed to their end.
        left_steps: that turned out to be others than the one followed.

    Args:
        arena: whose storages they are.
        describe: tells the bytes of a storage, and whether it is outside the arena.
        again: makes results of one op resident; raises ``refused`` where that does not work.
        drop: lets the bytes of a storage go, where it may go now.
        refused: what ``again`` raises.
        choose: plans a step; None: it is run as an unknown one.
        use: takes the policy from now on.
        fixed: followed whatever comes, as in a rehearsal.
    """

    def __init__(
        self,
        arena: FollowedArena,
        describe: Callable[[int], tuple[Bytes, bool]],
        again: Callable[[list[int]], None],
        drop: Callable[[int], None],
        refused: type[BaseException],
        choose: Callable[[StepRecord], Lookahead | None],
        use: Callable[[Policy], None],
        fixed: Lookahead | None = None,
    ) -> None:
        self._arena, self._describe, self._again, self._let_go, self._refused = (
            arena,
            describe,
            again,
            drop,
            refused,
        )
        self._choose, self._use = choose, use
        self._known: list[_KnownStep] = []
        self._open: list[_KnownStep] = []  # planned steps that this one may still be, best first
        self.record = StepRecord()
        self._start = arena.base
        self._ids: dict[Slot, int] = {}
        self._slots: dict[int, Slot] = {}
        self._fixed = fixed
        self.planned_steps = self.left_steps = 0
        if fixed is not None:
            use(fixed.policy)

    @property
    def following(self) -> Lookahead | None:
        """What is followed now."""
        return self._open[0].lookahead if self._open else self._fixed

    def before(self, key: Hashable) -> None:
        """Prepare the next op: leave plans that it is not of, and make again what the plan says.

        Args:
            key: equal for ops that do the same on the same sizes.
        """
        record, at = self.record, len(self.record.wires)
        record.keys[at:] = [key]  # in place of that of an op that failed
        if self._open:
            self._keep_open([one for one in self._open if at < len(one.keys) and one.keys[at] == key])
        followed = self.following
        for rerun in followed.directives.before.get(at, ()) if followed else ():
            ids = [self._ids.get(slot, -1) for slot in rerun.makes]
            missing = [one for one in ids if self._arena.valid(one) and not self._arena.resident(one)]
            try:
                if missing:
                    self._again(missing)
            except self._refused:
                self._keep_open([])
                if self._fixed is not None:
                    raise
                return
            self._drop(rerun.drops)

    def after(
        self,
        target: str,
        ns: Nanoseconds,
        taken: Bytes,
        reads: Sequence[int],
        creates: Sequence[int],
        changes: Sequence[tuple[int, int]],
    ) -> None:
        """Note an op that ran for the first time, and evict what the plan lets go.

        Args:
            target: its name.
            ns: its time.
            taken: most bytes that it held at once, those of its results included.
            reads: ids of what it read or changed, each once.
            creates: ids of its results.
            changes: of what it changed in place, the id and that of the old version, or -1.
        """
        record, arena, at = self.record, self._arena, len(self.record.wires)
        now = arena.base - self._start
        wire = tuple([self._slots.get(one) for one in reads])
        record.wires.append(wire)
        if self._open:
            self._keep_open([one for one in self._open if one.wires[at] == wire])
        read = tuple([record.number(one, self._describe) for one in reads])
        for one in creates:
            record.ids.pop(one, None)
        made = tuple([record.number(one, self._describe) for one in creates])
        held = sum(round_up(max(1, record.sizes[one])) for one in made)
        large = [one for one, number in zip(creates, made, strict=True) if record.sizes[number] > TINY]
        again = all(map(arena.recomputable, large or creates or [one for one, _ in changes]))
        record.makers.update(dict.fromkeys(made, len(record.events)))
        changed = tuple([record.ids[one] for one, _ in changes])
        record.events.append(LoggedOp(target, ns, read, made, changed, max(0, taken - held), again))
        touched = [one for one in reads if one in self._slots]
        for one in touched:
            record.uses[self._slots[one]].append(now)
        number = 0
        for one in creates:
            self._name(one, (at, number))
            number += 1
        for one, old in changes:
            former = self._slots.pop(one, None)
            if former is not None:
                self._ids.pop(former, None)
                if old >= 0:
                    record.written(one)
                    self._slots[old] = former
                    self._ids[former] = old
            if not record.outside[record.ids[one]]:
                self._name(one, (at, number))
                number += 1
        followed = self.following
        if followed is None:
            return
        if followed.policy.forecasts:
            for one in (*touched, *creates):
                self._tell(followed, one, now)
        self._drop(followed.directives.after.get(at, ()))

    def released(self, storage: int) -> None:
        """Note that nobody outside holds a storage any more; the arena may make others from it still."""
        known = self.record.ids.pop(storage, None)
        if known is not None:
            self.record.events.append(Released(known))

    def forgotten(self, storage: int) -> None:
        """Note that a record is gone."""
        slot = self._slots.pop(storage, None)
        if slot is not None:
            self._ids.pop(slot, None)
        self.released(storage)

    def end_step(self) -> None:
        """End a step: plan it where it came before, and begin the next."""
        record, self.record = self.record, StepRecord()
        self._ids, self._slots = {}, {}
        self._start = self._arena.base
        if self._fixed is not None:
            return
        self.planned_steps += bool(self._open) and len(record.keys) == len(self._open[0].keys)
        known = next(
            (one for one in self._known if one.keys == record.keys and one.wires == record.wires), None
        )
        if known is None:
            known = _KnownStep(record.keys, record.wires)
        else:
            self._known.remove(known)
            if not known.tried:
                known.tried = True
                known.lookahead = self._choose(record)
        self._known.insert(0, known)
        del self._known[_KEPT:]
        self._open = [one for one in self._known if one.lookahead is not None]
        self._change()

    # ---

    def _keep_open(self, left: list[_KnownStep]) -> None:
        """Go on with those of the planned steps that this one may still be."""
        before = self._open[0] if self._open else None
        self._open = left
        if before is not None and (not left or left[0] is not before):
            self.left_steps += 1
            self._change()

    def _name(self, one: int, slot: Slot) -> None:
        self._slots[one] = slot
        self._ids[slot] = one
        self.record.uses[slot] = []
        followed = self.following
        if followed is not None and slot in followed.directives.keeps:
            self._arena.keep(one)

    def _change(self) -> None:
        """Another plan is followed from now on, or none."""
        followed = self.following
        self._use(followed.policy if followed else COOP)
        for one in self._slots:
            self._arena.forecast(one, -1)

    def _drop(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            one = self._ids.get(slot, -1)
            if self._arena.valid(one):
                self._let_go(one)

    def _tell(self, followed: Lookahead, one: int, now: Nanoseconds) -> None:
        slot = self._slots.get(one)
        uses = followed.uses.get(slot, ()) if slot is not None else ()
        later = bisect_right(uses, now)
        self._arena.forecast(one, self._start + uses[later] if later < len(uses) else NEVER)
