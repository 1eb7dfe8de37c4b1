"""Layers that ranks compute together: published closed forms, whole estimates, and what is refused."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.measure import shape_layers
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.together import LayerInside, shared_sequence, shared_tensors
from tightrope_ranks.sequence.graph import capture_rank, is_collective
from tightrope_ranks.sequence.layers import DividedLayer, Division
from tightrope_ranks.sequence.saved import layer_bytes
from tightrope_ranks.values.ranks import StageCost
from tightrope_shared.attention import TransformerShape

QUICK = PipelineOptions(ascending=True, split=False, again=False, seconds=0.0)
INSIDE, BETWEEN = DeviceLink("inside", 1e-6, 1e11, span=4), DeviceLink("between", 1e-5, 1e10, level=1)
WIDTH, HEADS, LENGTH = 64, 4, 128


class Attending(nn.Module):
    """A layer with attention and a part behind it."""

    def __init__(self, *, fused: bool = True) -> None:
        super().__init__()
        self.fused, self.norm = fused, nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if self.fused:
            found = F.scaled_dot_product_attention(q, k, v)
        else:
            found = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.o(found.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def cluster(devices: int = 16) -> Machine:
    hbm = Tier("hbm", 2**30, read=1e11, write=1e11)
    return Machine("cluster", (hbm,), {"matmul": 1e12}, devices=devices, links=(INSIDE, BETWEEN))


def layers(num: int = 4, *, fused: bool = True) -> list[nn.Module]:
    with torch.device("meta"):
        return [Attending(fused=fused) for _ in range(num)]


def told(ranks: int = 16, *, fused: bool = True, **given: object) -> RanksEstimate:
    x = torch.empty(2, LENGTH, WIDTH, device="meta")
    return estimate_ranks(
        layers(fused=fused), x, ranks=ranks, machine=cluster(), options=QUICK, **given  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_keeps_what_the_paper_says(ranks: int) -> None:
    shape = TransformerShape(s=256, b=2, h=512, a=8, layers=1, t=ranks)
    with torch.device("meta"):
        layer = DividedLayer(shape.h, shape.a, shape.s, Division(), dropout=0.1).bfloat16()
    x = torch.empty(shape.s, shape.b, shape.h, device="meta", dtype=torch.bfloat16, requires_grad=True)
    inside: list[LayerInside] = []
    costs = shape_layers((layer, layer), x, cluster(), inside=inside)
    (cost, _) = shared_tensors(costs, inside, INSIDE, ranks)
    given = x.numel() * 2 // ranks
    assert cost.saved + given == pytest.approx(layer_bytes(shape, "sequence"), rel=1e-2)
    graph = capture_rank(shape, Division(mode="sequence", ranks=ranks))
    assert sum(map(is_collective, graph.ops)) == 2 * 2 * inside[0].num_parts  # both ways: a gather, a scatter


def test_times_are_shares_and_rings() -> None:
    layer = StageCost(forward=800, backward=900, weight=800, input=8000, output=8000, parameters=800)
    (one,) = shared_tensors((layer,), (LayerInside(heads=(8,)),), DeviceLink("link", bandwidth=1e9), 4)
    ring = 3 * 8000 // 4
    assert (one.forward, one.backward, one.weight) == (200 + 4 * ring, 225 + 4 * ring, 2 * ring)
    assert (one.input, one.output, one.parameters) == (2000, 2000, 200)
    of = LayerInside(heads=(8,), attention_ns=400, keys=4000)
    (one,) = shared_sequence((layer,), (of,), (0,), DeviceLink("link", bandwidth=1e9), 4)
    assert one.forward == 200 + 3 * 1000 - 100  # keys and values of three others, behind attention
    assert one.backward == 225 + 2 * (3 * 1000 - 100)
    (hidden,) = shared_sequence((layer,), (of,), (0,), DeviceLink("link", bandwidth=1e12), 4)
    assert (hidden.forward, hidden.parameters) == (200, 800)


@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_inside_of_a_layer_take_their_place(sharded: bool) -> None:
    found = told(pipeline=2, tensor=2, context=2, sharded=sharded)
    layout = found.layout
    assert layout.sizes == (2, 2, 2, 2)
    assert [layout.devices(rank) for rank in range(2)] == [(0, 7), (8, 15)]
    assert judge_ranks(found.plan).ns == found.plan.ns
    alone = told(8, pipeline=2, sharded=sharded, micro_batches=32).takes[0]
    assert found.takes[0].held < (0.53 if not sharded else 0.55) * alone.held  # biases and norms are whole
    assert found.takes[0].peak < alone.peak


def test_any_is_at_least_as_fast_as_every_choice() -> None:
    best = told(tensor=None, context=None)
    seen = {(one.layout.tensor, one.layout.context) for one in best.tried}
    assert seen == set(itertools.product((1, 2, 4), (1, 2, 4, 8, 16))) - {(2, 16), (4, 8), (4, 16)}
    for tensor, context in seen:
        assert best.plan.ns <= told(tensor=tensor, context=context).plan.ns


def test_attention_of_several_ops_is_divided_by_heads_alone() -> None:
    assert told(fused=False, tensor=4).layout.tensor == 4
    assert {one.layout.context for one in told(fused=False, tensor=1, context=None).tried} == {1}
    with pytest.raises(TightropeError, match=r"attention of 'layer 0' is of several ops.*scaled_dot_product"):
        told(fused=False, context=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor": 8}, r"tensor=8 does not divide the 4 heads of 'layer 0': give one of \[1, 2, 4\]"),
        ({"tensor": 3}, "tensor=3 does not divide 16 ranks"),
        ({"context": 0}, "context=0 does not divide 16 ranks"),
        ({"tensor": 4, "context": 8}, "tensor=4 times context=8 does not divide 16 ranks"),
        ({"tensor": 4, "micro_batches": 3, "pipeline": 2}, "give a multiple of 16"),
    ],
)
def test_what_cannot_be_divided_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        told(**given)


def test_a_parameter_that_cannot_be_cut_is_named() -> None:
    plain = [nn.Linear(6, 6, device="meta") for _ in range(2)]
    with pytest.raises(
        TightropeError, match=r"divides no side of a parameter of 'layer 0', of shape \[6, 6\]"
    ):
        estimate_ranks(plain, torch.empty(4, 6), ranks=4, tensor=4, machine=cluster(), options=QUICK)


def test_a_model_without_attention_has_no_sequence() -> None:
    plain = [nn.Linear(8, 8, device="meta") for _ in range(2)]
    with pytest.raises(TightropeError, match="no layer has attention"):
        estimate_ranks(plain, torch.empty(4, 8), ranks=4, context=2, machine=cluster(), options=QUICK)
