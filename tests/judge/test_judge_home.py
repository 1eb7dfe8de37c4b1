"""Storages that the caller holds in a slower tier: what the judge refuses."""

import pytest

from tightrope.core import (
    Compute,
    Flag,
    Free,
    Graph,
    JudgeError,
    Kind,
    Machine,
    Op,
    PageIn,
    PageOut,
    PlanFileError,
    Schedule,
    Step,
    Storage,
    Wait,
)
from tightrope.core.graph_check import check_graph
from tightrope.lower import lower, walked

MACHINE = Machine.parse(
    'name = "m"\ntiers = [{name="ram", bytes=4096, alignment=64}, '
    '{name="flash", bytes=4096, alignment=64, engines=0}]'
)
GRAPH = Graph(
    (
        Op(0, "use", "a.b", (0,), (1,)),
        Op(1, "update", "a.c", (0, 1), (), (0,), flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE),
    ),
    (Storage(0, 64, Kind.PARAMETER, external=True, home=1), Storage(1, 64)),
)
RIGHT: tuple[Step, ...] = (
    PageIn(0), Wait(0), Compute(0), Compute(1), Free(1), PageOut(0), Wait(0)
)  # fmt: skip


def test_a_schedule_that_brings_it_back_is_right() -> None:
    walk = walked(GRAPH, Schedule(RIGHT), MACHINE)
    assert [(one.storage, one.inwards) for one in walk.transfers] == [(0, True), (0, False)]
    assert walk.peak == 128
    assert GRAPH.persistent == 0


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (RIGHT[:-2], "left over"),
        ((*RIGHT[:-2], Free(0)), "ends after 0 changes in its home; the base order makes 1"),
        (RIGHT[:-1], "in flight"),
        (RIGHT[2:], "not live"),
        ((*RIGHT[:3], Free(0), PageIn(0), Wait(0), PageIn(0), *RIGHT[3:]), "second live copy"),
        ((RIGHT[0], *RIGHT[2:-2], Wait(0), Free(0)), "page-in is in flight"),
        ((*RIGHT[:3], PageOut(0), Wait(0), *RIGHT[3:]), "not live"),
        ((*RIGHT, Free(0, 1)), "where the caller holds it"),
    ],
)
def test_wrong_schedules_are_refused(steps: tuple[Step, ...], why: str) -> None:
    with pytest.raises(JudgeError, match=why):
        walked(GRAPH, Schedule(steps), MACHINE)


def test_dropping_it_unchanged_and_paging_it_in_again_is_right() -> None:
    steps = (*RIGHT[:3], Free(0), PageIn(0), Wait(0), *RIGHT[3:])
    assert len(walked(GRAPH, Schedule(steps), MACHINE).transfers) == 3


def test_it_needs_a_machine_with_that_tier() -> None:
    with pytest.raises(JudgeError, match="no machine has no such tier"):
        lower(GRAPH, Schedule(RIGHT))


def test_only_the_caller_has_a_home_elsewhere() -> None:
    with pytest.raises(PlanFileError, match="home"):
        check_graph(Graph((Op(0, "a", "a.b", (), (0,)),), (Storage(0, 64, home=1),)))


def test_the_home_is_part_of_the_fingerprint() -> None:
    def graph(home: int) -> Graph:
        return Graph((), (Storage(0, 64, external=True, home=home),))

    assert len({graph(home).fingerprint for home in range(3)}) == 3
