"""Experts divided among ranks: bytes and times counted by hand for a layer like Mixtral's."""

import math

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tightrope.core import DeviceLink, InfeasibleError, Machine, Tier, TightropeError
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.experts import Experts
from tightrope_ranks.pipeline.inside import ring_ns
from tightrope_ranks.pipeline.measure import shape_layers
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.titan import titan_settings
from tightrope_ranks.pipeline.together import LayerInside

WIDTH, INNER, NUMBER, CHOICES, TOKENS, LAYERS = 64, 96, 8, 2, 512, 4
DENSE = 2 * (NUMBER * WIDTH + WIDTH)  # router and norm
EXPERTS = 2 * NUMBER * 3 * WIDTH * INNER
ROWS = 2 * TOKENS * CHOICES * WIDTH
LINK = DeviceLink("link", 1e-6, 1e11)
MACHINE = Machine("cluster", (Tier("hbm", 2**30, read=1e11),), {"matmul": 1e12}, devices=8, links=(LINK,))
PLAIN = PipelineOptions((1,), split=False, again=False, seconds=0.0)


class Mixture(nn.Module):
    """Eight gated experts, of which every row takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, NUMBER, bias=False)
        self.up = nn.Parameter(torch.empty(NUMBER, WIDTH, 2 * INNER))
        self.down = nn.Parameter(torch.empty(NUMBER, INNER, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).flatten(0, 1)
        shares, chosen = self.router(h).softmax(-1).topk(CHOICES)
        order = chosen.flatten().argsort()
        ends = torch.histc(chosen.flatten().float(), NUMBER, 0, NUMBER - 1).cumsum(0).int()
        gate, up = F.grouped_mm(h[order // CHOICES], self.up, offs=ends).chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up, self.down, offs=ends) * shares.flatten()[order].unsqueeze(1)
        return x + torch.zeros_like(h).index_add(0, order // CHOICES, y).view_as(x)


def layers() -> list[nn.Module]:
    with torch.device("meta"):
        return [Mixture().bfloat16() for _ in range(LAYERS)]


def told(**given: object) -> RanksEstimate:
    x = torch.empty(1, TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")
    given = {"ranks": 8, "machine": MACHINE, "options": PLAIN, "pipeline": 1, "micro_batches": 8, **given}
    return estimate_ranks(layers(), x, **given)  # type: ignore[arg-type]


def test_experts_are_seen_and_counted_by_hand() -> None:
    inside: list[LayerInside] = []
    x = torch.empty(1, TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")
    shape_layers(layers(), x, MACHINE, inside=inside)
    found = inside[1].experts
    assert found is not None
    assert (found.number, found.choices, found.parameters, found.rows) == (NUMBER, CHOICES, EXPERTS, ROWS)
    # Rows in, out and weighted; gate and up in one; silu of the gate; the product; and numbers per row.
    wide = 2 * TOKENS * CHOICES * (3 * WIDTH + 4 * INNER)
    assert 0 <= found.kept - wide <= 40 * TOKENS * CHOICES
    assert inside[1] == inside[2]


@pytest.mark.parametrize("ways", [1, 2, 4, 8])
def test_bytes_held_are_those_counted_by_hand(ways: int) -> None:
    found = told(expert=ways)
    assert (found.layout.expert, found.layout.replicas) == (ways, 8)
    assert found.takes[0].held == LAYERS * 2 * (DENSE + EXPERTS // ways)  # parameters and gradients
    assert found.experts is not None
    assert (found.experts.parameters, found.experts.rows) == (LAYERS * EXPERTS // ways, ROWS)
    # A row goes to two ranks of eight at most once each, so half of all rows at most meet on one rank.
    assert found.experts.worst == ROWS * {1: 1, 2: 2, 4: 4, 8: 4}[ways]
    assert (found.experts.more > 0) == (ways > 1)


@pytest.mark.parametrize("ways", [1, 2, 8])
def test_what_replicas_divide_is_an_eighth_however_experts_are_divided(ways: int) -> None:
    found = told(expert=ways, sharded=True)
    exact = LAYERS * 2 * (DENSE + EXPERTS) // 8
    assert exact <= found.takes[0].held <= exact + LAYERS * 64


def test_rows_travel_twice_in_each_pass() -> None:
    found = {ways: told(expert=ways) for ways in (1, 4)}
    (one,), (four,) = (found[ways].plan.work.stages for ways in (1, 4))
    travel = LAYERS * 2 * ring_ns(LINK, ROWS, 4, rounds=1)
    assert ring_ns(LINK, ROWS, 4, rounds=1) == math.ceil(3 * (1000 + ROWS / 400))
    assert (four.forward - one.forward, four.backward - one.backward) == (travel, travel)
    dense, experts = (2 * ring_ns(LINK, size, 8, rounds=1) for size in (DENSE, EXPERTS // 4))
    pairs = 2 * ring_ns(LINK, EXPERTS // 4, 2, rounds=1)
    assert four.reduce == pytest.approx(LAYERS * (dense + pairs), abs=4 * LAYERS)
    assert four.reduce < LAYERS * (dense + experts)
    assert four.work - one.work == 2 * ROWS - EXPERTS * 3 // 4  # on their way there and back; gradients


def test_tensor_and_context_ranks_divide_rows_and_parameters() -> None:
    assert Experts(8, 80, 400, 40, 2).divided(2, 5) == Experts(8, 40, 40, 4, 2)
    found = told(expert=2, tensor=2)
    assert found.experts is not None
    assert found.experts.parameters == LAYERS * EXPERTS // 4
    assert found.experts.rows == ROWS // 2


def test_any_number_is_never_slower_than_one_that_is_given() -> None:
    budget = told(expert=2).takes[0].peak
    given = {ways: told(expert=ways, budget=budget).plan.ns for ways in (2, 4, 8)}
    with pytest.raises(InfeasibleError):
        told(expert=1, budget=budget)
    found = told(expert=None, budget=budget)
    assert found.plan.ns <= min(given.values())
    assert {one.layout.expert for one in found.tried} == {1, 2, 4, 8}


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(TightropeError, match=r"expert=3 does not divide 8 experts and 8 ranks: give one of"):
        told(expert=3)
    for wrong in (True, 2.0, "2"):
        with pytest.raises(TightropeError, match="give a whole number, or None"):
            told(expert=wrong)
    with pytest.raises(TightropeError, match="expert=8 divides no group of replicas"):
        told(expert=8, pipeline=2)
    with pytest.raises(TightropeError, match="expert=2: no layer has experts"):
        estimate_ranks(
            [nn.Linear(8, 8)], torch.empty(4, 8), ranks=8, machine=MACHINE, expert=2, micro_batches=8
        )


def test_torchtitan_is_told_the_degree() -> None:
    found = told(expert=4, sharded=True, tensor=2)
    parallelism = titan_settings(found)["parallelism"]
    assert parallelism["expert_parallel_degree"] == 4
    assert parallelism["expert_tensor_parallel_degree"] == 2
    assert parallelism["data_parallel_shard_degree"] % 4 == 0
    with pytest.raises(TightropeError, match="among sharded replicas"):
        titan_settings(told(expert=4))


def test_nodes_of_fewer_ranks_make_rows_travel_between_them() -> None:
    slow = (msgspec.structs.replace(LINK, span=4), DeviceLink("between", 1e-5, 1e9, level=1))
    near, far = (
        told(expert=ways, machine=msgspec.structs.replace(MACHINE, links=slow)).plan.work.stages[0].forward
        for ways in (4, 8)
    )
    assert far > 2 * near
