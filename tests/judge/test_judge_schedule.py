"""Each rule of a schedule, with the message that a broken one gives."""

import pytest

from tests.oracles import parted
from tightrope.core import (
    Allocation,
    Compute,
    Flag,
    Free,
    Graph,
    JudgeError,
    Op,
    PageIn,
    PageOut,
    Schedule,
    Step,
    Storage,
    Wait,
)
from tightrope.lower import walked

# 0 is the weight, 3 the mask of what is drawn, 4 stays to the end
GRAPH = Graph(
    (
        Op(0, "a", "aten.a", (0,), (1,), ns=1, module="net.a", source="model.py:7"),
        Op(1, "drawn", "aten.drawn", (1,), (2, 3), ns=10, flags=Flag.RANDOM, variant=4),
        Op(2, "c", "aten.c", (1, 2), (4,), ns=100),
        Op(3, "last", "aten.last_", (0, 3), (), (0,), ns=1000, flags=Flag.IN_PLACE),
    ),
    (
        Storage(0, 64, external=True),
        Storage(1, 64, label="float32[16]"),
        Storage(2, 64),
        Storage(3, 64),
        Storage(4, 64, resident_at_end=True),
    ),
    (Op(4, "drawn_again", "tightrope.mask", (1, 3), (2,), ns=5),),
)
GOOD: tuple[Step, ...] = (
    Compute(0),
    Compute(1),
    Free(2),
    Free(1),
    Compute(0),
    Compute(4),
    Compute(2),
    Free(2),
    Free(1),
    Compute(3),
    Free(3),
)


def test_the_good_schedule_passes() -> None:
    walk = walked(GRAPH, Schedule(GOOD))
    assert walk.profile == (64, 128, 192, 128, 64, 128, 192, 256, 192, 128, 64)
    assert walk.copies == (0, 2, 2, 1, 1)
    assert walk.ns == 1 + 10 + 1 + 5 + 100 + 1000


def test_a_dropped_copy_lives_beside_the_older_one() -> None:
    steps = (GOOD[0], Compute(0, (1,)), *GOOD[1:])
    assert walked(GRAPH, Schedule(steps)).profile[:3] == (64, 128, 64)


CASES: list[tuple[str, tuple[Step, ...], str]] = [
    (
        "absent input",
        GOOD[1:],
        r"step 0, op 1 aten.drawn: reads storage 1 \(float32\[16\]\), which is not live",
    ),
    (
        "freed input",
        (*GOOD[:4], *GOOD[5:]),
        r"step 4, op 4 .*: reads storage 1 \(float32\[16\]\), which is not live",
    ),
    ("second copy", (*GOOD[:2], *GOOD[4:]), r"step 2, op 0 .*: creates a second live copy of storage 1"),
    ("nothing to free", (Free(1), *GOOD), r"step 0: frees storage 1 \(float32\[16\]\), which is not live"),
    ("external freed", (Free(0), *GOOD), "frees storage 0, which belongs to the caller"),
    ("resident freed", (*GOOD, Free(4)), "releases storage 4, which must stay to the end"),
    ("unknown freed", (Free(5), *GOOD), "names storage 5; the graph has 5 storages"),
    ("unknown op", (Compute(5), *GOOD), "runs op 5; the graph has 5 ops and variants"),
    ("negative op", (Compute(-1), *GOOD), "runs op -1;"),
    ("random twice", (*GOOD[:4], Compute(0), Compute(1, (2, 3))), "must not run twice; its variant is op 4"),
    ("in place twice", (*GOOD[:10], Compute(3)), "op 3 aten.last_: must not run twice"),
    ("variant too early", (Compute(0), Compute(4)), "step 1, op 4 .*: reads storage 3, which is not live"),
    ("base op missing", GOOD[:9], "end: op 3 aten.last_ never ran"),
    ("left over", GOOD[:-1], "end: storage 3 is left over"),
    ("changed input", (*GOOD[:10], Compute(0, (1,))), "reads storage 0 after 1 changes in place;"),
    ("foreign drop", (Compute(0, (2,)), *GOOD[1:]), "drops storage 2, which it does not create"),
    (
        "drop twice",
        (Compute(0, (1, 1)), *GOOD[1:]),
        "drops storage 1 .*, which it does not create or drops twice",
    ),
    ("resident dropped", (*GOOD[:6], Compute(2, (4,))), "releases storage 4, which must stay to the end"),
    ("page out", (Compute(0), PageOut(1)), "pages to tier 1 and no machine has no such tier"),
    (
        "page in",
        (PageIn(1),),
        "pages to tier 1 and no machine has no such tier",
    ),
    ("wait", (Wait(1),), "waits for storage 1 .*, but no copy of it is in flight"),
]


@pytest.mark.parametrize(("steps", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_broken_rule_is_named(steps: tuple[Step, ...], message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        walked(GRAPH, Schedule(steps))


def test_a_variant_after_the_whole_base_order_is_not_a_first_run() -> None:
    walked(GRAPH, Schedule((*GOOD[:8], Compute(3), Compute(4), Free(2), Free(1), Free(3))))


def test_what_was_changed_in_place_is_not_made_again() -> None:
    graph = Graph(
        (
            Op(0, "a", "aten.a", (), (0,)),
            Op(1, "b", "aten.b_", (0,), (), (0,), flags=Flag.IN_PLACE),
            Op(2, "c", "aten.c", (0,), (1,)),
        ),
        (Storage(0, 64), Storage(1, 64, resident_at_end=True)),
    )
    walked(graph, Schedule((Compute(0), Compute(1), Compute(2), Free(0))))
    with pytest.raises(JudgeError, match=r"op 2 aten.c: reads storage 0 after 0 changes in place"):
        walked(graph, Schedule((Compute(0), Compute(1), Free(0), Compute(0), Compute(2), Free(0))))


def test_an_outside_storage_reaches_the_caller() -> None:
    ops = (Op(0, "a", "aten.a", (), (0,)), Op(1, "b", "aten.b", (), (1,)))
    graph = parted(Graph(ops, (Storage(0, 64, outside=True), Storage(1, 128))), 1)
    walk = walked(graph, Schedule((Compute(0), Compute(1), Free(0), Compute(2), Free(1))))
    assert (walk.peak, walk.outside_peak) == (128, 64)
    with pytest.raises(JudgeError, match=r"op 1 .*: reads storage 0, which is not live"):
        walked(graph, Schedule((Compute(0), Free(0), Compute(1), Compute(2), Free(1))))
    with pytest.raises(JudgeError, match=r"op 2 aten\.b: out of the base order: op 1 comes first"):
        walked(graph, Schedule((Compute(0), Compute(2), Compute(1), Free(0), Free(1))))


def test_a_variant_that_belongs_to_no_op_is_refused() -> None:
    graph = Graph((Op(0, "a", "aten.a", (), (0,)),), (Storage(0, 64),), (Op(1, "r", "aten.r", (), (0,)),))
    with pytest.raises(JudgeError, match="no op names it as its recompute variant"):
        walked(graph, Schedule((Compute(0), Free(0), Compute(1), Free(0))))


def test_temporaries_count_while_they_live() -> None:
    allocations = (Allocation(100, -1, 0, 2), Allocation(64, 0, 1), Allocation(1, -1, 3, 4))
    graph = Graph((Op(0, "a", "aten.a", (), (0,), allocations=allocations),), (Storage(0, 64),))
    walk = walked(graph, Schedule((Compute(0), Free(0))))
    assert walk.profile == (128, 192, 64, 128, 64, 0)
    assert [(i.size, i.start, i.end) for i in walk.intervals] == [(128, 0, 2), (64, 1, 5), (64, 3, 4)]


def test_a_coarse_alignment_is_charged() -> None:
    graph = Graph((Op(0, "a", "aten.a", (), (0,)),), (Storage(0, 1, alignment=512),), alignment=512)
    assert walked(graph, Schedule((Compute(0, (0,)),))).peak == 512
