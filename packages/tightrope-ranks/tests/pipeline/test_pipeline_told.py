"""What is told of models from shapes: frozen and tied weights, ops without a count, forwards of their own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope_ranks.pipeline.cuts import least_cuts
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks, is_sequence
from tightrope_ranks.pipeline.inside import ring_ns
from tightrope_ranks.pipeline.prices import is_unpriced
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.segments import FORWARD_ALONE, segment_costs

LINK = DeviceLink("link", 1e-6, 1e10)
CLUSTER = Machine("cluster", (Tier("hbm", 2**30, read=1e12),), {"matmul": 1e12}, devices=8, links=(LINK,))
QUICK = PipelineOptions(ascending=True, split=False, again=False, seconds=0.0)
X = torch.zeros(32, 64)
WEIGHT = 64 * 64 * 4
LINEAR = WEIGHT + 64 * 4
"""Bytes of a layer's parameters."""


class Net(nn.Module):
    """Three layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.head = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def frozen() -> Net:
    model = Net()
    model.blocks.requires_grad_(False)
    return model


def told(model: object, x: Any = X, **asked: Any) -> RanksEstimate:
    asked = {"ranks": 2, "pipeline": 2, **asked}
    return estimate_ranks(model, x, machine=CLUSTER, options=QUICK, **asked)


def test_frozen_weights_are_told_alike_on_meta_and_take_no_part_in_sums() -> None:
    with torch.device("meta"):
        empty = frozen()
    here, there = (segment_costs(one, (X,), machine=CLUSTER, states=2.0) for one in (frozen(), empty))
    assert here == there
    assert [one.parameters for one in here.costs] == [LINEAR] * 4
    assert here.trained == (0, 0, 0, LINEAR)
    assert [one.state for one in here.costs] == [0, 0, 0, 3 * LINEAR]
    assert [one.weight > 0 for one in here.costs] == [False, False, False, True]
    ring = ring_ns(LINK, LINEAR, 8, rounds=2)
    for model in (frozen(), empty, nn.Sequential(*frozen().blocks, nn.Linear(64, 64))):
        assert told(model, ranks=8, pipeline=1).takes[0].exchange_ns == ring


def test_frozen_layers_of_a_sequence_have_no_gradients_or_state() -> None:
    layers = [nn.Linear(64, 64) for _ in range(4)]
    for layer in layers[:3]:
        layer.requires_grad_(False)
    free, bound = (told(one, pipeline=1, ranks=1, optimizer_states=2.0) for one in (layers, frozen()))
    assert free.takes[0].held == bound.takes[0].held == 4 * LINEAR + 3 * LINEAR


class Scaled(nn.Sequential):
    """A sequence with a forward of its own, which needs two tensors."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * scale  # type: ignore[no-any-return,no-untyped-call]


def test_a_sequence_with_a_forward_of_its_own_is_called_by_it() -> None:
    model = Scaled(*(nn.Linear(64, 64) for _ in range(2)))
    assert not is_sequence(model)
    assert not is_sequence(5)
    assert told(model, (X, torch.ones(64))).names[:2] == ("0", "1")
    with pytest.raises(TightropeError, match="scale"):
        told(model)


def test_tied_weights_of_a_sequence_are_named() -> None:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    assert told(nn.Sequential(first, nn.ReLU(), second)).shared == ("0.weight",)


class Dot(Net):
    """With a product with a vector, of which torch has no count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mv(super().forward(x), x[0])


class DotLayer(nn.Module):
    """The same in a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.mv(x, x[0])[:, None]


@pytest.mark.parametrize("model", [Dot(), nn.Sequential(nn.Linear(64, 64), DotLayer())])
def test_ops_without_a_count_are_named(model: nn.Module) -> None:
    (note,) = told(model).notes
    assert "aten.mv.default" in note
    assert told(Net()).notes == ()


def test_heavy_ops_are_known_by_name() -> None:
    aten = torch.ops.aten
    heavy = (
        aten.mv,
        aten.addmv,
        aten.dot,
        aten._trilinear,
        aten.mkldnn_rnn_layer,
        aten._fft_c2c,
        aten.cholesky,
    )
    assert [str(op) for op in heavy if not is_unpriced(op.default)] == []
    light = (aten.mm, aten.relu, aten.native_layer_norm, aten._scaled_dot_product_flash_attention_for_cpu)
    assert [str(op) for op in light if is_unpriced(op.default)] == []


class Gate(Net):
    """With an op from elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = torch.ops.told.attention_gate(x)
        return super().forward(gated)


def test_an_op_from_elsewhere_is_no_attention_whatever_its_name() -> None:
    @torch.library.custom_op("told::attention_gate", mutates_args=())
    def gate(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    gate.register_fake(torch.empty_like)
    found = segment_costs(Gate(), (X,), machine=CLUSTER)
    assert "told.attention_gate.default" in found.notes[0]


class Forward(Net):
    """A forward alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return super().forward(x)


@pytest.mark.parametrize(
    "model", [Forward(), Net().requires_grad_(False), nn.Sequential(*Net().requires_grad_(False).blocks)]
)
def test_a_forward_alone_is_said(model: nn.Module) -> None:
    assert told(model).notes == (FORWARD_ALONE,)


class Keeps(Net):
    """Keeps a tensor, and a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        self.seen.append(self.last)
        return super().forward(x)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: nn.Sequential(one, nn.ReLU())])
def test_what_a_forward_keeps_does_not_stay_in_the_model(wrap: Callable[[nn.Module], nn.Module]) -> None:
    with torch.device("meta"):
        model = Keeps()
    told(wrap(model))
    assert not hasattr(model, "last")
    assert model.seen == []
    assert all(type(one) is nn.Parameter for one in model.parameters())


class Elsewhere(Net):
    """Adds a tensor that is neither a parameter nor an input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.ones(64, device="meta"))


@pytest.mark.parametrize(
    ("model", "given", "advice"),
    [
        (Elsewhere(), X, "Keep its tensors in parameters, buffers or inputs"),
        (Net(), torch.zeros(32, 63), "It raises RuntimeError: check the arguments"),
        (Net(), (X, X), "It raises TypeError: check the arguments"),
    ],
)
def test_advice_follows_the_cause(model: nn.Module, given: Any, advice: str) -> None:
    with pytest.raises(TightropeError, match=advice) as found:
        told(model, given)
    assert "branch" not in str(found.value)


def test_a_share_of_the_memory_is_a_budget() -> None:
    assert told(Net(), budget="50%").limit == 2**29


@pytest.mark.parametrize(("weights", "num"), [([], 1), ([1], 2), ([1, 2], 0)])
def test_cuts_that_there_are_not_are_refused(weights: list[int], num: int) -> None:
    with pytest.raises(TightropeError, match=f"cannot be cut into {num} stages"):
        least_cuts(weights, num)
