"""Simulated eviction: every op reads the values that it read the first time, on random programs."""

import random
from dataclasses import replace

import pytest

from tightrope.core import InfeasibleError
from tightrope.native.build import compiler
from tightrope.run.evict.policies import COOP, COOP_AS_PUBLISHED, DTE, DTR, LRU, PLANNED, SIZE, Policy
from tightrope_planners.evict.log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd
from tightrope_planners.evict.rehearse import rehearse
from tightrope_planners.evict.replay import LogReplay, WaitingOp
from tightrope_planners.evict.simulate import live_peak, simulate

pytestmark = pytest.mark.skipif(compiler() is None, reason="the arena is native")

POLICIES = (COOP, COOP_AS_PUBLISHED, DTR, DTE, LRU, SIZE, replace(COOP, name="drop", keep_temporaries=False))


def program(seed: int, *, num_ops: int = 60) -> EvictionLog:
    """Draw ops that read, create, change in place and are let go; everything is let go at the end."""
    draw = random.Random(seed)
    sizes = [64, 64, 128]
    outside = [True] * 3
    live = [0, 1, 2]
    events: list[LogEvent] = []
    for number in range(num_ops):
        reads = draw.sample(live, min(len(live), draw.randint(1, 3)))
        ns = draw.randint(1, 100)
        if draw.random() < 0.15:
            changed = draw.choice(reads)
            events.append(LoggedOp(f"op{number}_", ns, tuple(reads), (), (changed,)))
        else:
            creates = tuple(range(len(sizes), len(sizes) + draw.randint(1, 2)))
            sizes += [128 * draw.randint(1, 4) for _ in creates]
            outside += [False] * len(creates)
            live += creates
            temporary = 128 * draw.randint(0, 2)
            again = draw.random() < 0.95
            events.append(LoggedOp(f"op{number}", ns, tuple(reads), creates, (), temporary, again))
        while len(live) > 10:
            events.append(Released(live.pop(draw.randrange(3, len(live)))))
    events += [Released(one) for one in live[3:]]
    return EvictionLog(f"seed {seed}", tuple(sizes), tuple(outside), (*events, StepEnd()))


class Valued(LogReplay):
    """A run in which storages have values, so that reading a wrong version is seen."""

    def __init__(self, log: EvictionLog, size: int, policy: Policy) -> None:
        super().__init__(log, size, policy, choose=lambda record: rehearse(record, size))
        self.values: dict[int, int] = {}
        self.right: dict[int, int] = {}

    def read(self, inputs: list[int]) -> list[int]:
        for one in inputs:
            assert self.arena.resident(one)
            self.values.setdefault(one, hash(("outside", one)))
            assert self.values[one] == self.right.setdefault(one, self.values[one])
        return sorted(self.values[one] for one in inputs)

    def _run_first(self, frame: WaitingOp) -> None:
        op = frame.producer.op
        found = self.read(frame.producer.inputs)
        before = {storage: self.ids[storage] for storage in op.mutates}
        values = {storage: self.values[one] for storage, one in before.items()}
        super()._run_first(frame)
        for number, storage in enumerate((*op.creates, *op.mutates)):
            one = self.ids[storage]
            value = hash((op.target, tuple(found), number))
            self.values[one] = self.right[one] = value
            producer = self.producers.get(one)
            if storage in values and producer is not None and producer.old >= 0:
                self.right[producer.old] = values[storage]

    def _run_again(self, frame: WaitingOp) -> None:
        producer = frame.producer
        found = self.read(producer.inputs)
        super()._run_again(frame)
        for number, one in enumerate(producer.outputs):
            if self.producers.get(one) is producer and self.arena.resident(one):
                self.values[one] = hash((producer.op.target, tuple(found), number))
                assert self.values[one] == self.right[one]

    def play(self) -> None:
        for event in self.log.events:
            if isinstance(event, LoggedOp):
                self.op(event)
            elif isinstance(event, Released):
                self.release(event.storage)
            else:
                self.end_step()
            assert self.arena.statistics().used_bytes <= self.size
        held = {self.ids[storage] for storage in self.ids if not self.log.outside[storage]}
        assert not held


@pytest.mark.few(2)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_op_reads_the_values_that_it_read_first(policy: Policy) -> None:
    finished = again = 0
    for seed in range(40):
        log = program(seed)
        for percent in (95, 85, 75):
            run = Valued(log, live_peak(log) * percent // 100, policy)
            try:
                run.play()
            except InfeasibleError:
                continue
            finished += 1
            again += run.again_ops
            counted = run.arena.statistics()
            assert counted.high_water <= run.size
            assert counted.used_bytes == 0
    assert finished > 10
    assert again > 50


def test_with_room_for_everything_nothing_runs_again() -> None:
    for seed in range(10):
        log = program(seed)
        found = simulate(log, 2 * live_peak(log), COOP)
        assert found.again_ns == (0,)
        assert found.statistics.evictions == 0


def test_the_same_log_gives_the_same_decisions() -> None:
    log = chain(num_steps=2)
    first, second = (simulate(log, live_peak(log) * 7 // 10, COOP, decisions=True) for _ in range(2))
    assert [(d.start, d.end, d.cost, d.victims) for d in first.decisions] == [
        (d.start, d.end, d.cost, d.victims) for d in second.decisions
    ]
    assert first.decisions


def test_a_budget_that_is_too_small_is_refused_by_name() -> None:
    log = program(0)
    with pytest.raises(InfeasibleError, match=r"op\d+_?: .* fit nowhere in an arena of 64 B under"):
        simulate(log, 64, COOP)


def test_switches_change_what_is_evicted_and_never_what_is_computed() -> None:
    switches = (
        replace(COOP, in_place=False),
        replace(COOP, two_ends=False),
        replace(COOP, relocate=False),
        replace(COOP, soft_pins=False),
        replace(COOP, neighbours=0),
        replace(COOP, per_byte=False),
        replace(COOP, flat=False),
        replace(DTR, sample=True),
    )
    for switched in switches:
        finished = 0
        for seed in range(15):
            log = program(seed)
            run = Valued(log, live_peak(log) * 19 // 20, switched)
            try:
                run.play()
            except InfeasibleError:
                continue
            finished += 1
        assert finished > 2


def chain(*, num_steps: int, depth: int = 12) -> EvictionLog:
    """Steps that repeat: a chain forward, and back by way of what the forward kept."""
    sizes, outside, events = [64], [True], list[LogEvent]()
    for _ in range(num_steps):
        made = [0]
        for at in range(depth):
            target, ns = ("light", 10) if at % 2 else ("heavy", 500)
            events.append(LoggedOp(target, ns, (made[-1],), (len(sizes),)))
            made.append(len(sizes))
            sizes.append(1024)
            outside.append(False)
        gradient = made[-1]
        for kept in reversed(made[1:-1]):
            events.append(LoggedOp("back", 100, (gradient, kept), (len(sizes),)))
            events += [Released(gradient), Released(kept)]
            gradient = len(sizes)
            sizes.append(1024)
            outside.append(False)
        events += [Released(gradient), StepEnd()]
    return EvictionLog("chain", tuple(sizes), tuple(outside), tuple(events))


def repeated(log: EvictionLog, count: int) -> EvictionLog:
    """Let a step that lets go of all it makes come several times, on the same storages outside."""
    sizes, outside, events = list(log.sizes), list(log.outside), list(log.events)
    inside = [one for one in range(len(log.sizes)) if not log.outside[one]]
    for _ in range(count - 1):
        ids = list(range(len(log.sizes)))
        for one in inside:
            ids[one] = len(sizes)
            sizes.append(log.sizes[one])
            outside.append(False)
        for event in log.events:
            match event:
                case LoggedOp():
                    rows = (event.reads, event.creates, event.mutates)
                    reads, creates, changed = (tuple(ids[one] for one in row) for row in rows)
                    events.append(replace(event, reads=reads, creates=creates, mutates=changed))
                case Released(storage):
                    events.append(Released(ids[storage]))
                case StepEnd():
                    events.append(event)
    return EvictionLog(log.name, tuple(sizes), tuple(outside), tuple(events))


def test_planned_recomputes_no_more_than_coop_once_a_step_came_twice() -> None:
    log = chain(num_steps=4)
    for percent in (80, 60, 50):
        size = live_peak(log) * percent // 100
        planned, coop = simulate(log, size, PLANNED), simulate(log, size, COOP)
        assert planned.again_ns[:2] == coop.again_ns[:2]
        assert sum(planned.again_ns[2:]) <= sum(coop.again_ns[2:])
        assert coop.again_ns[0] > 0


def test_steps_that_differ_are_run_as_by_coop() -> None:
    log = chain(num_steps=3)
    step, events = 0, list[LogEvent]()
    for event in log.events:
        step += isinstance(event, StepEnd)
        if isinstance(event, LoggedOp) and event.target == "light":
            events.append(replace(event, target=f"light {step}"))
        else:
            events.append(event)
    log = replace(log, events=tuple(events))
    size = live_peak(log) * 6 // 10
    planned, coop = (simulate(log, size, policy, decisions=True) for policy in (PLANNED, COOP))
    assert planned.again_ns == coop.again_ns
    assert [d.victims for d in planned.decisions] == [d.victims for d in coop.decisions]


@pytest.mark.slow
def test_what_is_planned_reads_the_values_of_the_first_run() -> None:
    followed = 0
    for seed in range(16):
        log = repeated(program(seed), 5)
        run = Valued(log, live_peak(log) * 17 // 20, PLANNED)
        try:
            run.play()
        except InfeasibleError:
            continue
        assert run.follower is not None
        followed += run.follower.planned_steps
        assert run.arena.statistics().used_bytes == 0
    assert followed > 5


def test_a_step_with_the_same_ops_on_other_storages_is_another_step() -> None:
    left, right = (LoggedOp("add", 5, (one,), (2,)) for one in (0, 1))
    sizes, outside = (64, 64, 64), (True, True, False)
    logs = [EvictionLog("x", sizes, outside, (op, Released(2), StepEnd())) for op in (left, right)]
    made = (Released(0), Released(1), StepEnd())
    makes = LoggedOp("make", 5, (), (0, 1), recomputable=False)
    logs = [replace(log, outside=(False,) * 3, events=(makes, *log.events[:-1], *made)) for log in logs]
    run = LogReplay(logs[0], 4096, PLANNED)
    for log in (*logs, *logs):
        for event in log.events:
            if isinstance(event, LoggedOp):
                run.op(event)
            elif isinstance(event, Released):
                run.release(event.storage)
            else:
                run.end_step()
    assert run.follower is not None
    assert len(run.follower._known) == 2


def test_a_rehearsal_gives_a_plan_that_takes_less_than_coop() -> None:
    log = u_shaped()
    size = live_peak(log) * 6 // 10
    planned, coop = simulate(log, size, PLANNED), simulate(log, size, COOP)
    assert planned.again_ns[-1] < coop.again_ns[-1]


def u_shaped() -> EvictionLog:
    """Four equal steps of a chain in which early results are read late, and cost much or little."""
    return repeated(replace(chain(num_steps=1, depth=18), name="u"), 4)
