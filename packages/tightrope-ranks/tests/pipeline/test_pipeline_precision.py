"""Precision policies: bytes per parameter, types of activations, and what cannot be asked."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.measure import shape_layers
from tightrope_ranks.pipeline.precision import PRECISIONS, Precision, precision_of
from tightrope_ranks.pipeline.rank_layout import RankLayout
from tightrope_ranks.pipeline.replicas import exchanged
from tightrope_ranks.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline

CLUSTER = Machine(
    "cluster", (Tier("hbm", 2**30),), {"matmul": 1e12}, devices=2, links=(DeviceLink("link", 1e-6, 1e10),)
)
QUICK = PipelineOptions(ascending=True, split=False, again=False, seconds=0.0)
NUM = 4 * 256 * 256
X = torch.zeros(32, 256)


def layers(**where: object) -> list[nn.Module]:
    return [nn.Linear(256, 256, bias=False, **where) for _ in range(4)]  # type: ignore[arg-type]


def told(precision: str | Precision, model: object = None) -> RanksEstimate:
    return estimate_ranks(
        model or layers(),
        X,
        ranks=1,
        machine=CLUSTER,
        optimizer_states=2.0,
        precision=precision,
        options=QUICK,
    )


@pytest.mark.parametrize(
    ("precision", "per_parameter"),
    [
        ("model", 4 + 4 + 8), ("fp32", 4 + 4 + 8), ("autocast", 4 + 4 + 8), ("bf16", 2 + 2 + 4 + 8),
        ("bf16-fp32-gradients", 2 + 4 + 4 + 8),
        (PRECISIONS["fp32"].eight_bit(), 4 + 4 + 2 * (1 + 4 / 256)),
        (PRECISIONS["bf16"].eight_bit(), 2 + 2 + 4 + 2 * (1 + 4 / 256)),
    ],
)  # fmt: skip
def test_adam_holds_so_many_bytes_per_parameter(precision: str | Precision, per_parameter: float) -> None:
    whole = nn.Sequential(*layers())
    assert told(precision).takes[0].held == per_parameter * NUM
    assert told(precision, whole).takes[0].held == per_parameter * NUM
    assert told(precision, layers(device="meta")).takes[0].held == per_parameter * NUM


def test_a_model_with_a_forward_of_its_own_holds_the_same() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(layers())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x).relu()
            return x

    for name in PRECISIONS:
        one, other = told(name, Net()), told(name, layers())
        assert one.takes[0].held == other.takes[0].held
    assert told("bf16", Net()).takes[0].peak < told("model", Net()).takes[0].peak


def test_activations_have_the_type_of_the_policy() -> None:
    net = [nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3)]
    kept = {
        name: shape_layers(net, X, CLUSTER, precision=policy)[1].saved for name, policy in PRECISIONS.items()
    }
    native = shape_layers([one.bfloat16() for one in net], X.bfloat16(), CLUSTER)[1].saved
    assert kept["bf16"] == kept["bf16-fp32-gradients"] == native == kept["model"] / 2
    copies = 2 * (256 * 256 + 32 * 256)  # the weight, and what GELU needs, in 16 bits; so is the input
    assert kept["autocast"] == copies
    assert shape_layers(net, X, CLUSTER, precision=PRECISIONS["fp32"])[1].saved == kept["model"]


def test_frozen_parameters_have_neither_copy_nor_state() -> None:
    net = layers()
    net[0].requires_grad_(False)
    assert told("bf16", net).takes[0].held == 16 * NUM * 3 // 4 + 2 * NUM // 4


def test_divided_gradients_are_added_up_in_four_bytes() -> None:
    """As by FSDP2: whole gradients of a stage live through the step, wider than its parameters."""
    peaks, reduces = [], []
    for policy in (PRECISIONS["bf16"], replace(PRECISIONS["bf16"], summed=None)):
        costs = shape_layers(layers(), X, CLUSTER, states=2.0, precision=policy)
        costs = exchanged(costs, CLUSTER, RankLayout(1, 2, 4), sharded=True)
        plan = plan_pipeline(PipelineTask(costs, CLUSTER, 1, 4, replicas=2, sharded=True), QUICK)
        peaks.append(max(judge_ranks(plan).peaks))
        reduces.append(plan.work.stages[0].reduce)
    assert peaks[0] - peaks[1] == 2 * NUM
    assert reduces[0] > 1.8 * reduces[1]


def test_layers_that_are_alike_are_read_once_and_told_the_same() -> None:
    calls = []

    class Seen(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(self.scale)
            return super().forward(x).relu() if self.scale > 1 else super().forward(x)

    def row(*scales: int) -> list[nn.Module]:
        made: list[nn.Module] = []
        for scale in scales:
            made.append(Seen(256, 256))
            made[-1].scale = scale  # type: ignore[assignment]
        return made

    found = shape_layers(row(1, 1, 2, 1, 2), X, CLUSTER)
    assert calls == [1, 2, 1] or calls == [1, 1, 2]  # the first layer's input needs no gradient
    apart = [shape_layers(row(1, scale), X, CLUSTER)[1].saved for scale in (1, 2)]
    assert [one.saved for one in found[1:]] == [apart[0], apart[1], apart[0], apart[1]]
    calls.clear()
    hooked = row(1, 1, 1)
    hooked[2].register_forward_hook(lambda *_: None)
    shape_layers(hooked, X, CLUSTER)
    assert len(calls) == 3


@pytest.mark.parametrize("wrong", ["fp8", 16, None])
def test_other_policies_are_refused(wrong: object) -> None:
    with pytest.raises(TightropeError, match="give one of model, fp32, bf16"):
        precision_of(wrong)
