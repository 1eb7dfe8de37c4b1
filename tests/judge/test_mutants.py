"""Damaged executables are refused; an interpreter that shares no code with the judge says which are wrong."""

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.executable.drafts import draft, numbered
from benchmarks.executable.interpreter import Meaning, interpret
from benchmarks.executable.judged import damage
from benchmarks.executable.mutants import FAMILIES
from benchmarks.executable.sources import Source, of_seed, two_tiers, typed
from tests.oracles import parted
from tightrope.core import (
    Alloc,
    Compute,
    Copy,
    Executable,
    Free,
    Graph,
    Op,
    PageIn,
    PageOut,
    Resume,
    Schedule,
    Step,
    Storage,
    Sync,
    Wait,
)
from tightrope.core.executable import ARENA, CALLER, SLOWER
from tightrope.judge import judge
from tightrope.lower import lower, place_at, planned
from tightrope.plan import smallest


@cache
def sources() -> tuple[Source, ...]:
    """Executables of random graphs; some copy to a slower tier, some hand over in between."""
    return tuple(source for seed in (4, 6, 8, 19) for source in of_seed(seed))


def paged() -> Source:
    """One that copies."""
    return next(s for s in sources() if any(isinstance(i, Copy) for i in s.executable.instructions))


def both(source: Source, executable: Executable) -> tuple[str | None, str]:
    """What the interpreter and the judge say."""
    wrong = interpret(Meaning(source.graph), executable, budget=source.budget, machine=source.machine)
    return wrong, " ".join(judge(source.graph, executable, None, source.machine).problems)


@pytest.mark.slow
def test_the_interpreter_and_the_judge_accept_what_is_right() -> None:
    for source in sources():
        assert both(source, source.executable) == (None, "")


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_wrong_is_refused(family: str) -> None:
    row = damage(sources(), family, 25, seed=1)
    assert (row["wrong"], row["accepted"]) == (25, 0), row["note"]


def changed(executable: Executable, **fields: Any) -> Executable:
    """The same with the first allocation of a memory changed."""
    position = next(
        k
        for k, i in enumerate(executable.instructions)
        if isinstance(i, Alloc) and i.space == fields.get("space", i.space)
    )
    new = replace(executable.instructions[position], **fields)
    made = (*executable.instructions[:position], new, *executable.instructions[position + 1 :])
    return replace(executable, instructions=made)


@pytest.mark.parametrize(
    ("space", "offset", "why"),
    [
        (CALLER, 64, f"an address in space {CALLER}, which has none"),
        (SLOWER, 64, "holds another page at [64, 256)"),
        (SLOWER, -1, "has no address -1 for a page"),
    ],
)
def test_an_address_where_it_cannot_be_is_refused(space: int, offset: int, why: str) -> None:
    source = paged()
    wrong, refused = both(source, changed(source.executable, space=space, offset=offset))
    assert wrong is not None
    assert why in refused


def test_a_memory_that_the_machine_does_not_have_is_refused() -> None:
    source = next(s for s in sources() if s.machine is None)
    spaces = (*source.executable.spaces, source.executable.spaces[ARENA])
    wrong, refused = both(source, replace(source.executable, spaces=spaces))
    assert wrong is not None
    assert "none, because no machine is given" in refused


def test_an_arena_that_is_larger_than_its_addresses_is_refused() -> None:
    source = sources()[0]
    spaces = list(source.executable.spaces)
    spaces[ARENA] = replace(spaces[ARENA], capacity=spaces[ARENA].capacity + 64)
    wrong, refused = both(source, replace(source.executable, spaces=tuple(spaces)))
    assert wrong is not None
    assert "addresses end at" in refused


def test_memory_of_the_caller_that_is_never_brought_is_refused() -> None:
    one = sources()[0].graph
    graph = replace(one, storages=(*one.storages, Storage(len(one.storages), 100, external=True)))
    plan = smallest(graph)
    right = lower(graph, plan)
    position = next(
        k for k, i in enumerate(right.instructions) if isinstance(i, Alloc) and i.storage == len(one.storages)
    )
    mutant = replace(right, instructions=numbered(draft(graph, right).at(position)).instructions)
    assert interpret(Meaning(graph), right, budget=plan.budget) is None
    assert interpret(Meaning(graph), mutant, budget=plan.budget) is not None
    assert f"the caller never brings storage {len(one.storages)}" in judge(graph, mutant).problems[0]


OPS = (Op(0, "a", "a", (0,), (1,)), Op(1, "b", "b", (1,), (2,)))
STORAGES = (Storage(0, 64, external=True), Storage(1, 64), Storage(2, 64, resident_at_end=True))
OUT, IN = (PageOut(1), Wait(1)), (PageIn(1), Wait(1))


@pytest.mark.parametrize(
    ("before", "after", "verb"),
    [((*OUT, *IN), (*OUT, *IN, Free(1, 1)), "copies"), ((*OUT, PageIn(1)), (Wait(1), Free(1, 1)), "waits")],
)
def test_nothing_is_copied_or_awaited_while_the_caller_has_control(
    before: tuple[Step, ...], after: tuple[Step, ...], verb: str
) -> None:
    graph = typed(parted(Graph(OPS, STORAGES), 1))
    steps = (Compute(0), *before, Compute(1), *after, Compute(2), Free(1))
    machine = two_tiers(graph)
    right = lower(graph, Schedule(steps), machine)
    right = place_at(right, [64 * k for k in range(len(planned(right)))])
    made = list(right.instructions)
    resumed = max(k for k, i in enumerate(made) if isinstance(i, Resume))
    assert isinstance(made[resumed + 1], Copy | Sync)
    made.insert(resumed, made.pop(resumed + 1))
    wrong = [
        (
            interpret(Meaning(graph), one, budget=4096, machine=machine),
            judge(graph, one, None, machine).problems,
        )
        for one in (right, replace(right, instructions=tuple(made)))
    ]
    assert wrong[0] == (None, ())
    assert wrong[1][0] is not None
    assert f"{verb} while the caller has control" in wrong[1][1][0]
