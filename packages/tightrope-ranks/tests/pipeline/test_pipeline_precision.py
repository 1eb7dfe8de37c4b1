"""Precision policies: bytes per parameter, types of activations, and what cannot be asked."""

import pytest
import torch
from torch import nn

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.measure import shape_layers
from tightrope_ranks.pipeline.precision import PRECISIONS, Precision, precision_of
from tightrope_ranks.pipeline.search import PipelineOptions

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


@pytest.mark.parametrize("wrong", ["fp8", 16, None])
def test_other_policies_are_refused(wrong: object) -> None:
    with pytest.raises(TightropeError, match="give one of model, fp32, bf16"):
        precision_of(wrong)
