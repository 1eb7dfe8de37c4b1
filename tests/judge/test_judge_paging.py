"""Each rule of copies between tiers, with a schedule that breaks it."""

import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tightrope.core import (
    Alloc,
    Compute,
    Flag,
    Forecast,
    Free,
    Graph,
    JudgeError,
    Limits,
    Machine,
    Op,
    PageIn,
    PageOut,
    Plan,
    QualityLimit,
    Result,
    Schedule,
    Step,
    Storage,
    Tier,
    View,
    Wait,
)
from tightrope.judge import judge
from tightrope.lower import lower, lowered, problems, walked
from tightrope.plan.assemble import assemble

# 1 is made, read, idle while 2 is made and used, and read again; 4 is changed in place
GRAPH = Graph(
    (
        Op(0, "a", "aten.a", (0,), (1,), ns=1000),
        Op(1, "b", "aten.b", (1,), (2,), ns=1000),
        Op(2, "c", "aten.c", (2,), (3,), ns=1000),
        Op(3, "d", "aten.d", (1, 3), (4,), ns=1000),
        Op(4, "e", "aten.e_", (4,), (), (4,), ns=1000, flags=Flag.IN_PLACE),
        Op(5, "f", "aten.f", (4,), (5,), ns=1000),
    ),
    (
        Storage(0, 640, external=True),
        Storage(1, 128, label="float32[32]"),
        Storage(2, 64),
        Storage(3, 64),
        Storage(4, 64),
        Storage(5, 64, resident_at_end=True),
    ),
)


def machine(*, engines: int = 1, capacity: int = 256) -> Machine:
    # 128 bytes take 1,280 ns out and 640 ns in, plus a latency of 100 ns
    slow = Tier("slow", capacity, read=0.2e9, write=0.1e9, latency=1e-7, watts=2.0, toll=2e-9)
    slow = replace(slow, engines=engines)
    return Machine("two tiers", (Tier("fast", 4096), slow), watts=1.0)


GOOD: tuple[Step, ...] = (
    Compute(0),
    Compute(1),
    PageOut(1),
    Wait(1),
    Compute(2),
    Free(2),
    PageIn(1),
    Wait(1),
    Compute(3),
    Free(1),
    Free(1, 1),
    Free(3),
    Compute(4),
    Compute(5),
    Free(4),
)
OUT, IN = 1380, 740


def test_the_good_schedule_passes_and_waits_are_timed() -> None:
    walk = walked(GRAPH, Schedule(GOOD), machine())
    assert walk.ns == 6 * 1000 + OUT + IN
    assert walk.profile == (128, 192, 64, 128, 64, 192, 256, 192, 64, 128, 64)
    assert walk.tiers == (128,)
    assert walk.copies[1] == 2
    assert [(w.storage, w.inwards, w.start, w.end) for w in walk.transfers] == [
        (1, False, 2000, 2000 + OUT),
        (1, True, 3000 + OUT, 3000 + OUT + IN),
    ]
    assert walk.joules == pytest.approx(6e-6 * 1.0 + (OUT + IN) * 1e-9 * 2.0)


def overlapped() -> tuple[Step, ...]:
    """The same, with the page-out beside op 2."""
    return (*GOOD[:3], Compute(2), Wait(1), Free(2), *GOOD[6:])


def test_an_engine_copies_beside_the_processor_and_the_processor_itself_does_not() -> None:
    assert walked(GRAPH, Schedule(overlapped()), machine()).ns == 6000 + (OUT - 1000) + IN
    assert walked(GRAPH, Schedule(overlapped()), machine(engines=0)).ns == 6000 + OUT + IN


def replaced(position: int, *steps: Step) -> tuple[Step, ...]:
    return (*GOOD[:position], *steps, *GOOD[position + 1 :])


CASES: list[tuple[str, tuple[Step, ...], str]] = [
    ("read without page-in", GOOD[:6] + GOOD[8:], r"reads storage 1 \(float32\[32\]\), which is not live"),
    (
        "read before the wait",
        (*GOOD[:7], Compute(3)),
        r"op 3 aten.d: reads storage 1 .* while its page-in is in flight",
    ),
    ("page-in of nothing", (*GOOD[:2], Free(1), *GOOD[4:]), "of which tier 1 holds no copy"),
    ("page-in before the page-out is done", (*GOOD[:3], PageIn(1)), "of which a copy is in flight already"),
    ("page-in after the slow copy went", (*GOOD[:4], Free(1, 1), *GOOD[4:]), "of which tier 1 holds no copy"),
    ("page-in beside the live copy", (*GOOD[:8], PageIn(1)), "pages in storage 1 .*, a second live copy"),
    ("page-out of what is not live", (Compute(0), PageOut(2)), "pages out storage 2, which is not live"),
    ("page-out twice", (*GOOD[:3], PageOut(1)), "of which a copy is in flight already"),
    ("page-out of the caller's", (Compute(0), PageOut(0)), "which belongs to the caller"),
    ("page-out of nothing known", (PageOut(9),), "names storage 9; the graph has 6 storages"),
    ("no such tier", replaced(2, PageOut(1, 2)), "pages to tier 2 and machine 'two tiers' has no such tier"),
    ("wait for nothing", replaced(2), "waits for storage 1 .*, but no copy of it is in flight"),
    ("wait twice", replaced(3, Wait(1), Wait(1)), "no copy of it is in flight"),
    ("free while it leaves", (*GOOD[:3], Free(1)), "releases storage 1 .* while a copy of it is in flight"),
    ("free while it comes", (*GOOD[:7], Free(1)), "releases storage 1 .* while a copy of it is in flight"),
    ("slow copy freed while it is read", (*GOOD[:7], Free(1, 1)), "releases storage 1 .* while a copy of it"),
    (
        "slow copy freed while it is written",
        (*GOOD[:3], Free(1, 1)),
        "releases storage 1 .* while a copy of it",
    ),
    (
        "slow copy never freed",
        replaced(10),
        r"end: a copy of storage 1 \(float32\[32\]\) is left over in tier 1",
    ),
    ("copy never waited for", (*GOOD[:14], PageOut(4)), "end: the copy of storage 4 between tiers is still"),
    ("made again while it comes", replaced(7, Compute(0)), "creates a second live copy of storage 1"),
    (
        "changed while it leaves",
        (*GOOD[:12], PageOut(4), Compute(4)),
        "changes storage 4 while its page-out is in flight",
    ),
    (
        "stale copy",
        (
            *GOOD[:12],
            PageOut(4),
            Wait(4),
            PageIn(4),
            Wait(4),
            Compute(4),
            Free(4),
            PageIn(4),
            Wait(4),
            Compute(5),
        ),
        "op 5 aten.f: reads storage 4 after 0 changes in place; in the base order it has 1",
    ),
]


@pytest.mark.parametrize(("steps", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_broken_rule_is_named(steps: tuple[Step, ...], message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        walked(GRAPH, Schedule(steps), machine())


def test_a_full_tier_is_refused() -> None:
    walked(GRAPH, Schedule(GOOD), machine(capacity=128))
    with pytest.raises(JudgeError, match=r"tier 1 \(slow\) would hold 128 of its 64 bytes"):
        walked(GRAPH, Schedule(GOOD), machine(capacity=64))


def test_a_copy_is_written_over_and_reserved_once() -> None:
    again = (*GOOD[:12], PageOut(4), Wait(4), PageIn(4), Wait(4), Compute(4), PageOut(4), Wait(4))
    walk = walked(GRAPH, Schedule((*again, PageIn(4), Wait(4), Compute(5), Free(4), Free(4, 1))), machine())
    assert walk.tiers == (128,)
    assert len(walk.transfers) == 6


def plan(schedule: Schedule, of: Machine) -> Plan:
    """A right plan: every block at its own address."""
    walk = walked(GRAPH, schedule, of)
    offsets, top = [], 0
    for block in walk.intervals:
        offsets.append(top)
        top += block.size
    forecast = Forecast(GRAPH.persistent, walk.peak, top, 0, walk.ns, 6000, walk.joules, walk.tiers)
    return Plan(
        GRAPH.fingerprint, schedule, tuple(offsets), forecast.total, forecast, machine=of.name,
        limits=Limits((forecast.total, 128)),
    )  # fmt: skip


def test_a_right_plan_passes_and_needs_its_machine() -> None:
    good = plan(Schedule(GOOD), machine())
    assert lowered(GRAPH, good, machine()).verdict.ns == good.forecast.ns
    assert "pages to tier 1 and no machine has no such tier" in problems(GRAPH, good)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ns": 6000 + IN}, "forecast: ns is said to be 6740; the instructions give 8120"),
        ({"ns": 6000}, "forecast: ns"),
        ({"tiers": (64,)}, "forecast: tiers"),
        ({"tiers": ()}, "forecast: tiers"),
        ({"joules": 6e-6}, "forecast: joules"),
    ],
    ids=["copies that overlap", "copies for nothing", "fewer bytes", "no bytes", "copies without energy"],
)
def test_a_wrong_forecast_is_refused(change: dict[str, object], message: str) -> None:
    good = plan(Schedule(GOOD), machine())
    was = good.forecast
    fields = {name: getattr(was, name) for name in was.__struct_fields__} | change
    wrong = Plan(
        good.fingerprint, good.schedule, good.offsets, good.budget, Forecast(**fields), machine=good.machine
    )  # type: ignore[arg-type]
    assert any(message in problem for problem in problems(GRAPH, wrong, machine()))


def test_limits_of_a_slower_tier_and_of_another_machine_are_checked() -> None:
    good = plan(Schedule(GOOD), machine())
    tight = Plan(
        good.fingerprint, good.schedule, good.offsets, good.budget, good.forecast,
        limits=Limits((good.budget, 127)), machine=good.machine,
    )  # fmt: skip
    assert problems(GRAPH, tight, machine()) == ["limits: 127 bytes of tier 1 allowed, 128 taken."]
    limit = QualityLimit(("degrees", "accuracy"), (True, False), ((5.0, 0.9), (2.0, 0.8)))
    for values, said in (
        ((5.0, 0.9), None),
        ((2.0, 0.85), None),
        ((), "limits: quality is limited by degrees, accuracy; 0 values were measured."),
        ((1.0, 0.7), "limits: quality: accuracy is 0.7, and the limit 0.9."),
        ((6.0, 0.95), "limits: quality: degrees is 6.0, and the limit 5.0."),
        ((float("nan"), 1.0), "plan: $.forecast.quality = an array of 2 items"),
    ):
        forecast = msgspec.structs.replace(good.forecast, quality=values)
        limited = msgspec.structs.replace(good, forecast=forecast, limits=Limits(quality=limit))
        found = problems(GRAPH, limited, machine())
        assert found == [] if said is None else said in found[0]
        assert limit.allows(values) == (said is None)
    measured = msgspec.structs.replace(good.forecast, quality=(1.0, 1.0))
    none = Limits(quality=QualityLimit(("a", "b"), (True, True), ()))
    nothing = msgspec.structs.replace(good, forecast=measured, limits=none)
    assert "quality allows no values" in problems(GRAPH, nothing, machine())[0]
    other = Machine("another", machine().tiers, watts=1.0)
    assert "made for 'two tiers', this one is 'another'" in problems(GRAPH, good, other)[0]


@given(order=st.permutations(range(6)), engines=st.sampled_from((0, 1, 2)), gap=st.integers(0, 5))
def test_transfers_of_one_engine_never_overlap(order: list[int], engines: int, gap: int) -> None:
    count = 6
    graph = Graph(
        tuple(Op(i, "a", "a", (), (i,), ns=300) for i in range(count))
        + tuple(Op(count + i, "b", "b", (i,), (), ns=300) for i in range(count)),
        tuple(Storage(i, 64 * (i + 1)) for i in range(count)),
    )
    steps: list[Step] = [Compute(i) for i in range(count)]
    steps += [PageOut(i) for i in order]
    steps += [Wait(i) for i in order]
    for i in range(count):
        steps += [PageIn(s) for s in range(count) if max(0, s - gap) == i]
        steps += [Wait(i), Compute(count + i), Free(i), Free(i, 1)]
    of = machine(engines=engines, capacity=2**20)
    walk = walked(graph, Schedule(tuple(steps)), of)
    for way in (False, True):
        mine = [w for w in walk.transfers if engines < 2 or w.inwards is way]
        assert all(a.end <= b.start for a, b in pairwise(mine))
    for moved in walk.transfers:
        assert moved.end - moved.start == of.tiers[1].copy_ns(
            graph.storages[moved.storage].bytes, inwards=moved.inwards
        )
    copying = sum(w.end - w.start for w in walk.transfers)
    assert walk.ns <= 12 * 300 + copying
    assert (walk.ns == 12 * 300 + copying) or engines


def two_pages() -> tuple[Graph, Plan]:
    """Two storages of 128 bytes that are in the slower tier at once."""
    graph = Graph(
        (
            Op(0, "a", "aten.a", creates=(0,)),
            Op(1, "b", "aten.b", creates=(1,)),
            Op(2, "c", "aten.c", (0, 1), (2,)),
        ),
        (Storage(0, 128), Storage(1, 128), Storage(2, 64, resident_at_end=True)),
    )
    steps: list[Step] = [Compute(0), PageOut(0), Wait(0), Compute(1), PageOut(1), Wait(1)]
    steps += [PageIn(0), Wait(0), PageIn(1), Wait(1), Free(0, 1), Free(1, 1), Compute(2), Free(0), Free(1)]
    return graph, assemble(graph, Schedule(tuple(steps)), budget=None, machine=machine())


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, r"tier 1 \(slow\) holds another page at \[0, 128\), where buffer 3 would lie at 0"),
        (64, r"holds another page at \[0, 128\), where buffer 3 would lie at 64"),
        (96, r"tier 1 \(slow\) has no address 96 for a page"),
        (-1, r"tier 1 \(slow\) has no address -1 for a page"),
        (192, r"tier 1 \(slow\) would hold 320 of its 256 bytes"),
    ],
)
def test_pages_lie_in_the_tier_and_apart(at: int, message: str) -> None:
    graph, plan = two_pages()
    executable = lower(graph, plan, machine())
    assert judge(graph, executable, plan, machine()).ok
    assert plan.forecast.tiers == (256,)
    wrong = msgspec.structs.replace(
        executable,
        instructions=tuple(
            msgspec.structs.replace(item, offset=at)
            if isinstance(item, Alloc) and item.offset == 128
            else item
            for item in executable.instructions
        ),
    )
    assert executable != wrong
    verdict = judge(graph, wrong, plan, machine())
    assert not verdict.ok
    assert re.search(message, verdict.problems[0]), verdict.problems


def test_a_result_that_was_written_over_an_input_can_be_paged() -> None:
    made = tuple(Result(-1, View(s, "float32", (32,), (1,))) for s in range(4))
    graph = Graph(
        (
            Op(0, "a", "aten.ones.default", creates=(0,), results=made[:1]),
            Op(1, "b", "aten.relu.default", (0,), (1,), arguments=(made[0].view,), results=made[1:2], over=0),
            Op(2, "c", "aten.ones.default", creates=(2,), results=made[2:3]),
            Op(
                3,
                "d",
                "aten.add.Tensor",
                (1, 2),
                (3,),
                arguments=(made[1].view, made[2].view),
                results=made[3:],
            ),
        ),
        (Storage(0, 128), Storage(1, 128), Storage(2, 128), Storage(3, 128, resident_at_end=True)),
    )
    steps: list[Step] = [Compute(0), Compute(1), Free(0), PageOut(1), Wait(1), Compute(2), PageIn(1), Wait(1)]
    steps += [Free(1, 1), Compute(3), Free(1), Free(2)]
    plan = assemble(graph, Schedule(tuple(steps)), budget=None, machine=machine())
    executable, verdict = lowered(graph, plan, machine())
    assert [run.op for run in executable.runs() if not run.inside] == [1]
    assert verdict.ok
