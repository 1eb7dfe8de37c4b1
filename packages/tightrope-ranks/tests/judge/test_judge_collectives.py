"""Ranks that meet, and ranks that would wait for ever."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tightrope.core import Executable, JudgeError, Result, Run, View
from tightrope_ranks.judge.collectives import check_collectives


def call(kind: str, number: int, group: str = "all", ranks: int = 3, rows: int = 12) -> Run:
    given = View(number, "float32", (rows, 4), (4, 1))
    made = {"gather": rows * ranks, "scatter": rows // ranks, "sum": rows}[kind]
    result = Result(-1, View(number + 1, "float32", (made, 4), (4, 1)))
    return Run(number, f"tightrope_ranks.{kind}.default", (given, ranks, group), (), (result,))


def rank(*runs: Run) -> Executable:
    return Executable("0" * 64, (), runs)


def world() -> list[list[Run]]:
    """Three ranks in one group; ranks 0 and 1 in a second one."""
    kinds = ["gather", "scatter", "sum", "gather", "sum", "scatter"]
    common = [call(kind, 2 * at, rows=12 * (at + 1)) for at, kind in enumerate(kinds)]
    pair = call("sum", 40, "pair", 2)
    return [[*common[:3], pair, *common[3:]], [*common[:3], pair, *common[3:]], common]


GROUPS = {"all": (0, 1, 2), "pair": (0, 1)}


def test_ranks_that_call_alike_meet() -> None:
    assert check_collectives([rank(*runs) for runs in world()], GROUPS) == 7


def drop(runs: list[Run], rng: random.Random) -> None:
    del runs[rng.randrange(len(runs))]


def twice(runs: list[Run], rng: random.Random) -> None:
    at = rng.randrange(len(runs))
    runs.insert(at, runs[at])


def swap(runs: list[Run], rng: random.Random) -> None:
    at = rng.randrange(len(runs) - 1)
    runs[at], runs[at + 1] = runs[at + 1], runs[at]


def regroup(runs: list[Run], rng: random.Random) -> None:
    at = rng.randrange(len(runs))
    view, ranks, group = runs[at].arguments
    other = "pair" if group == "all" else "all"
    runs[at] = replace(runs[at], arguments=(view, ranks, other))


def recount(runs: list[Run], rng: random.Random) -> None:
    at = rng.randrange(len(runs))
    view, ranks, group = runs[at].arguments
    runs[at] = replace(runs[at], arguments=(view, int(ranks) + 1, group))  # type: ignore[arg-type]


def resize(runs: list[Run], rng: random.Random) -> None:
    at = rng.randrange(len(runs))
    view, *rest = runs[at].arguments
    assert isinstance(view, View)
    shape = (view.shape[0] + 12, *view.shape[1:])
    runs[at] = replace(runs[at], arguments=(replace(view, shape=shape), *rest))


@pytest.mark.parametrize("mutate", [drop, twice, swap, regroup, recount, resize])
def test_a_rank_that_does_something_else_is_refused(
    mutate: Callable[[list[Run], random.Random], None],
) -> None:
    rng = random.Random(7)
    for _ in range(60):
        runs = world()
        mutate(runs[rng.randrange(3)], rng)
        with pytest.raises(JudgeError):
            check_collectives([rank(*found) for found in runs], GROUPS)


def test_a_call_without_its_arguments_is_refused() -> None:
    with pytest.raises(JudgeError, match="without a tensor"):
        check_collectives([rank(Run(0, "tightrope_ranks.sum.default"))], GROUPS)
