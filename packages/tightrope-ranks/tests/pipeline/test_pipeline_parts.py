"""Plans of tied and frozen layers: what they record, what the judge refuses, what cannot be planned."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tightrope.core import (
    Collective,
    DeviceLink,
    JudgeError,
    Machine,
    PlanFileError,
    Send,
    Tier,
    TightropeError,
)
from tightrope_ranks import PipelineOptions, plan
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.exact import exact_orders
from tightrope_ranks.pipeline.measure import measure_layers
from tightrope_ranks.values.ranks import (
    JointPlan,
    StageCost,
    StageWork,
    Tie,
    check_work,
    dump_joint,
    load_joint,
)

X = torch.randn(4, 8)
CLUSTER = Machine(
    "cluster",
    (Tier("hbm", 2**30, read=1e12),),
    {"matmul": 1e12},
    devices=8,
    links=(DeviceLink("l", 1e-6, 1e9),),
)
ONE_EACH = PipelineOptions((1,), fold=False, split=False, ascending=True, seconds=0.0)


def linears(count: int = 4) -> list[nn.Linear]:
    return [nn.Linear(8, 8) for _ in range(count)]


def tied() -> list[nn.Linear]:
    layers = linears()
    layers[3].weight = layers[0].weight
    return layers


def made(layers: Sequence[nn.Module], **more: Any) -> JointPlan:
    more = {"ranks": 2, "micro_batches": 2, "options": ONE_EACH, **more}
    return plan(layers, X, X, nn.functional.mse_loss, **more)


def changed(found: JointPlan, change: Callable[[list[Any]], list[Any]], rank: int = 0) -> JointPlan:
    """Change the instructions of a rank."""
    mine = found.ranks[rank]
    code = msgspec.structs.replace(
        mine.executable, instructions=tuple(change(list(mine.executable.instructions)))
    )
    ranks = list(found.ranks)
    ranks[rank] = msgspec.structs.replace(mine, executable=code)
    return msgspec.structs.replace(found, ranks=tuple(ranks))


@pytest.mark.parametrize("machine", [None, CLUSTER])
def test_a_plan_knows_what_is_tied_and_has_room_for_the_sums(machine: Machine | None) -> None:
    apart, found = made(linears(), machine=machine), made(tied(), machine=machine)
    assert found.work.ties == (Tie("0.weight", 256, (0, 1), (0, 2)),)
    more = [b.state - a.state for a, b in zip(apart.work.stages, found.work.stages, strict=True)]
    assert more == [512, 512]
    assert load_joint(dump_joint(found)) == found


@pytest.mark.parametrize(
    ("layers", "ties"),
    [
        (lambda one: [one, nn.Linear(8, 8), nn.Linear(8, 8), one], [((0, 1), (0, 2)), ((0, 1), (1, 3))]),
        (lambda one: [one, one, nn.Linear(8, 8), nn.Linear(8, 8)], []),
        (lambda one: [one.requires_grad_(False), nn.Linear(8, 8), nn.Linear(8, 8), one], []),
    ],
)
def test_only_what_is_trained_on_several_stages_is_tied(layers: Any, ties: list[Any]) -> None:
    assert [(one.stages, one.places) for one in made(layers(nn.Linear(8, 8))).work.ties] == ties


def test_the_judge_refuses_plans_that_do_not_sum_what_is_tied_once_at_the_end() -> None:
    found = made(tied())

    def at(code: list[Any]) -> int:
        return next(k for k, one in enumerate(code) if isinstance(one, Collective) and "TIED" in one.what)

    def other(code: list[Any], **new: Any) -> list[Any]:
        return [*code[: at(code)], msgspec.structs.replace(code[at(code)], **new), *code[at(code) + 1 :]]

    wrong: dict[str, Callable[[list[Any]], list[Any]]] = {
        "never sums the gradients of 0.weight": lambda c: c[: at(c)] + c[at(c) + 2 :],
        "in use, again": lambda c: c[: at(c) + 2] + c[at(c) :],
        "before all have come": lambda c: [*c[:5], *c[at(c) : at(c) + 2], *c[5 : at(c)], *c[at(c) + 2 :]],
        "of this rank": lambda c: other(c, group=1, what="1TIED"),
        "leaves buffers": lambda c: c[: at(c) + 1] + c[at(c) + 2 :],
    }
    for rank in (0, 1):
        for said, change in wrong.items():
            with pytest.raises(JudgeError, match=said):
                judge_ranks(changed(found, change, rank))
    with pytest.raises(JudgeError, match="other work"):
        judge_ranks(msgspec.structs.replace(found, work=msgspec.structs.replace(found.work, ties=())))
    layer = nn.Linear(8, 8)
    both = made([layer, nn.Linear(8, 8), nn.Linear(8, 8), layer], replicas=2, machine=CLUSTER)
    with pytest.raises(JudgeError, match="not in order"):
        judge_ranks(changed(both, lambda c: [*c[: at(c)], *c[at(c) + 2 :][:2], *c[at(c) :][:2], c[-1]]))


@pytest.mark.parametrize("machine", [None, CLUSTER])
@pytest.mark.parametrize("split", [False, True])
def test_frozen_stages_have_no_backward_and_hand_nothing_back(machine: Machine | None, split: bool) -> None:
    layers: list[nn.Module] = [nn.Flatten(), *linears(5)]
    for layer in layers[1:3]:
        layer.requires_grad_(False)
    found = made(layers, ranks=3, machine=machine, options=PipelineOptions((1,), split=split, seconds=0.0))
    work = found.work
    assert work.frozen == 1
    batch = 2 * 64 + 2 * 128  # its two layers' part of agreements, and two micro-batches
    assert (work.stages[0].backward, work.stages[0].weight, work.stages[0].state) == (0, 0, batch)
    assert work.stages[0].saved == 0
    assert all(one.backward > 0 for one in work.stages[1:])
    sent = [one.what for rank in found.ranks for one in rank.executable.instructions if isinstance(one, Send)]
    assert sorted(sent) == ["0F0", "0F1", "1F0", "1F1", "2B0", "2B1"]
    with pytest.raises(JudgeError):
        judge_ranks(msgspec.structs.replace(found, work=msgspec.structs.replace(work, frozen=0)))
    with pytest.raises(TightropeError, match="frozen stages"):
        exact_orders(work, found.machine)


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Stop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


def shared_norm() -> list[nn.Module]:
    norm = nn.BatchNorm1d(8)
    return [norm, nn.Linear(8, 8), norm]


def same_memory() -> list[nn.Module]:
    one, two = linears(2)
    two.weight = nn.Parameter(one.weight.detach())
    return [one, two]


@pytest.mark.parametrize("machine", [None, CLUSTER])
@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (lambda: [nn.Linear(8, 8), Two()], r"layer 1 \(Two\) returns tuple: a layer must return one tensor"),
        (
            lambda: [nn.Linear(8, 8), nn.Linear(7, 8)],
            r"layer 1 \(Linear\) fails on a tensor of shape \(4, 8\)",
        ),
        (
            lambda: [nn.Linear(8, 8), Stop(), nn.Linear(8, 8)],
            r"layer 1 \(Stop\) returns a tensor without a grad",
        ),
        (lambda: [one.requires_grad_(False) for one in linears()], "there is nothing to train"),
        (same_memory, "0.weight and 1.weight are two parameters in the same memory"),
    ],
)
def test_layers_that_cannot_be_planned_are_named(layers: Any, said: str, machine: Machine | None) -> None:
    with pytest.raises(TightropeError, match=said):
        made(layers(), machine=machine)


def test_buffers_that_two_layers_write_and_divided_ties_are_refused() -> None:
    with pytest.raises(TightropeError, match="layers 0 and 2 write the same buffer"):
        made(shared_norm())
    with pytest.raises(TightropeError, match=r"0\.weight is a parameter of several layers"):
        made(tied(), sharded=True, replicas=2)
    quiet = shared_norm()
    assert made([one.eval() for one in quiet]).work.ties


def test_measuring_leaves_gradients_and_buffers_as_they_were() -> None:
    layers = [nn.Linear(8, 8), nn.BatchNorm1d(8)]
    before = [one.clone() for one in layers[1].buffers()]
    measure_layers(layers, X, X, nn.functional.mse_loss)
    assert all(map(torch.equal, before, layers[1].buffers()))
    assert all(one.grad is None for layer in layers for one in layer.parameters())


@pytest.mark.parametrize(
    "wrong",
    [
        {"frozen": 2},
        {"frozen": 1},
        {"ties": (Tie("w", 4, (0,), (0,)),)},
        {"ties": (Tie("w", 4, (1, 0), (0, 0)),)},
        {"ties": (Tie("w", 4, (0, 2), (0, 0)),)},
        {"ties": (Tie("w", 4, (0, 1), (0,)),)},
        {"ties": (Tie("w", -4, (0, 1), (0, 0)),)},
        {"ties": (Tie("w", 4, (0, 1), (0, 0)),), "sharded": True},
        {"shapes": ((1,),) * 3},
    ],
)
def test_work_that_does_not_fit_together_is_refused(wrong: dict[str, Any]) -> None:
    work = StageWork((StageCost(1, 1), StageCost(1, 1)), (0, 1), 1)
    check_work(work)
    with pytest.raises(PlanFileError):
        check_work(msgspec.structs.replace(work, **wrong))
