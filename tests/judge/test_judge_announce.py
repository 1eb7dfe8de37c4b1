"""Gradients that are announced before the backward ends: where the executable says so, and where it may."""

from functools import cache

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tightrope.capture import capture
from tightrope.core import Announce, Executable, Graph, JudgeError, PlanFileError, Release, Resume, Run, View
from tightrope.core.executable_check import check_executable
from tightrope.judge import walk_executable
from tightrope.lower import announced, groups, lower, place_at, planned
from tightrope.plan import base_schedule

WIDTH = 256
"""A weight takes 256 KiB, and is a group."""


@cache
def step() -> tuple[Graph, Executable]:
    net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    graph = capture(net, torch.ones(4, WIDTH))
    return graph, lower(graph, base_schedule(graph))


def weights() -> list[int]:
    graph, _ = step()
    return [at for at, one in enumerate(graph.parts[0].inputs) if one.view and len(one.view.shape) == 2]


def trained() -> list[int]:
    graph, _ = step()
    return [at for at, value in enumerate(graph.parts[1].outputs) if value is not None]


def at_of(executable: Executable, kind: type) -> list[int]:
    return [at for at, one in enumerate(executable.instructions) if isinstance(one, kind)]


def test_groups_hold_every_gradient_once_in_the_order_of_the_backward() -> None:
    graph, _ = step()
    found = groups(graph, trained())
    assert sorted(position for group in found for position in group) == trained()
    assert len(found) == 4  # what the bias of the first layer gets comes last
    assert [position for group in found for position in group if position in weights()] == sorted(
        set(weights()).intersection(trained()), reverse=True
    )
    assert groups(graph, trained()[:1]) == ()


def test_in_a_group_smaller_gradients_come_first() -> None:
    graph, _ = step()
    made = graph.parts[1].outputs
    for group in groups(graph, trained()):
        sizes = [graph.storages[value.base].size for at in group if isinstance(value := made[at], View)]
        assert len(sizes) == len(group)
        assert sizes == sorted(sizes)


def test_no_step_has_many_groups_and_little_waits_for_the_end() -> None:
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(40)))
    graph = capture(net, torch.ones(4, WIDTH))
    made = graph.parts[1].outputs
    wanted = [at for at, value in enumerate(made) if value is not None]
    found = groups(graph, wanted)
    sizes = [
        sum(graph.storages[value.base].size for at in group if isinstance(value := made[at], View))
        for group in found
    ]
    assert 8 <= len(found) <= 11
    assert sizes[-1] <= sum(sizes) / 8


def test_what_runs_and_what_is_allocated_stay_as_they_were() -> None:
    graph, executable = step()
    found = announced(graph, executable, 1, groups(graph, trained()))
    assert len(at_of(found, Announce)) == 3
    rest = tuple(one for one in found.instructions if not isinstance(one, Announce))
    assert rest == executable.instructions
    assert planned(found) == planned(executable)
    check_executable(found)
    with_judge, without = walk_executable(graph, found), walk_executable(graph, executable)
    assert with_judge == without


def moved(by: int) -> Executable:
    """The executable with its last announcement so many instructions earlier, releases aside."""
    graph, executable = step()
    found = list(announced(graph, executable, 1, groups(graph, trained())).instructions)
    at = max(number for number, one in enumerate(found) if isinstance(one, Announce))
    announce = found.pop(at)
    while by or isinstance(found[at], Release):
        at -= 1
        by -= not isinstance(found[at], Release)
    found.insert(at, announce)
    return replace(executable, instructions=tuple(found))


def test_a_gradient_that_is_not_there_yet_is_refused() -> None:
    graph, _ = step()
    walk_executable(graph, moved(0))
    with pytest.raises(JudgeError, match="the graph has"):
        walk_executable(graph, moved(1))


def test_an_input_that_is_read_when_its_gradient_was_announced_is_refused() -> None:
    graph, executable = step()
    found = announced(graph, executable, 1, groups(graph, trained())).instructions
    first = next(one for one in found if isinstance(one, Run))  # reads weight and bias of the first layer
    after = 1 + max(at for at, one in enumerate(found) if isinstance(one, Announce))
    with pytest.raises(JudgeError, match="it was announced"):
        walk_executable(graph, replace(executable, instructions=(*found[:after], first, *found[after:])))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, positions=one.positions[::-1]), "the graph has"),
        (lambda one: replace(one, positions=(*one.positions[:-1], 999)), "the call has"),
        (lambda one: replace(one, outputs=one.outputs[:-1]), "the call has|outputs"),
    ],
)
def test_wrong_announcements_are_refused(change, said: str) -> None:  # type: ignore[no-untyped-def]
    graph, executable = step()
    found = announced(graph, executable, 1, groups(graph, trained()))
    at = at_of(found, Announce)[1]
    wrong = (*found.instructions[:at], change(found.instructions[at]), *found.instructions[at + 1 :])
    with pytest.raises(JudgeError, match=said):
        walk_executable(graph, replace(found, instructions=wrong))


def test_a_forward_announces_nothing() -> None:
    graph, executable = step()
    found = announced(graph, executable, 1, groups(graph, trained()))
    announce = found.instructions[at_of(found, Announce)[0]]
    first = at_of(executable, Resume)[0]
    wrong = (*executable.instructions[: first + 1], announce, *executable.instructions[first + 1 :])
    with pytest.raises(JudgeError, match="in no backward"):
        walk_executable(graph, replace(executable, instructions=wrong))


def test_a_file_cannot_announce_one_output_twice() -> None:
    graph, executable = step()
    placed = place_at(executable, [0 if one.space == 1 else -1 for one in planned(executable)], arena=2**40)
    found = announced(graph, placed, 1, groups(graph, trained()))
    at = at_of(found, Announce)[1]
    announce = found.instructions[at]
    assert isinstance(announce, Announce)
    wrong = replace(announce, positions=(announce.positions[0],) * len(announce.positions))
    instructions = (*found.instructions[:at], wrong, *found.instructions[at + 1 :])
    with pytest.raises(PlanFileError, match="positions"):
        check_executable(replace(found, instructions=instructions))
