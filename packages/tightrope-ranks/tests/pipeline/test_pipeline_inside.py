"""Layers that are computed again, or gathered one by one, inside of a stage; models of published sizes."""

import itertools
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.ranks.llama import llama
from tightrope.core import DeviceLink, InfeasibleError, Machine, Tier
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.inside import computed_again, divided, num_keeping, ring_ns
from tightrope_ranks.pipeline.measure import measure_layers, shape_layers
from tightrope_ranks.pipeline.search import PipelineOptions, merged
from tightrope_ranks.values.ranks import StageCost

LINKS = (DeviceLink("inside", 5e-6, 240e9, span=8), DeviceLink("between", 1e-5, 20e9, level=1))
HERE = Machine("here", (Tier("ram", 2**34),), {"matmul": 1e12}, devices=8, links=LINKS)
ROWS, WIDTH = 256, 128


class Wide(nn.Module):
    """A layer that keeps much more than its input."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 6 * WIDTH), nn.GELU(), nn.Linear(6 * WIDTH, WIDTH))
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        run: Any = checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)
        return x + run  # type: ignore[no-any-return]


def test_a_stage_with_layers_computed_again_keeps_what_the_allocator_counts() -> None:
    """The reference is torch's checkpoint of the same layers, as one stage."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH)
    costs = shape_layers([Wide() for _ in range(6)], x, HERE)
    for count in range(7):
        changed = computed_again(costs, count)
        again = [one.saved == 0 for one in changed]
        assert sum(again) == count
        stage = nn.Sequential(*(Wide(again=one) for one in again))
        seen = measure_layers(
            [nn.Linear(WIDTH, WIDTH), stage, nn.Linear(WIDTH, WIDTH)], x, torch.zeros_like(x), F.mse_loss
        )[1]
        told = merged(changed)
        assert abs(told.saved - seen.saved) <= 0.05 * seen.saved + 1024
        assert told.work >= 0.9 * seen.work
        assert told.backward - merged(costs).backward == sum(
            one.forward for one, chosen in zip(costs, again, strict=True) if chosen
        )


def test_layers_that_keep_nothing_are_not_chosen_and_chosen_ones_are_spread() -> None:
    rows = [StageCost(1, 1, saved=saved) for saved in (0, 8, 8, 0, 8, 8, 0)]
    assert num_keeping(rows) == 4
    chosen = [
        [was.saved > now.saved for was, now in zip(rows, computed_again(rows, count), strict=True)]
        for count in range(5)
    ]
    assert [sum(one) for one in chosen] == [0, 1, 2, 3, 4]
    assert [place for place, one in enumerate(chosen[2]) if one] == [2, 5]


def test_a_layer_waits_for_its_exchange_where_that_takes_longer() -> None:
    link, size = LINKS[1], 8_000_000
    ring = ring_ns(link, size, 4, rounds=1)
    for computes in (ring // 10, 10 * ring):
        layer = StageCost(computes, computes, computes, work=5, parameters=size, state=3 * size)
        (one,) = divided((layer,), link, 4, (size,))
        assert one.forward == max(computes, ring)
        assert one.backward + one.weight == max(2 * computes, 2 * ring)
        assert (one.parameters, one.state, one.work) == (size // 4, 3 * size // 4, 5 + 3 * size)


def asked(budget: int, **more: Any) -> RanksEstimate:
    options = PipelineOptions(ascending=True, split=False, seconds=0.0, **more)
    return estimate_ranks(
        [Wide() for _ in range(8)], torch.zeros(4096, WIDTH), ranks=1, machine=HERE, budget=budget,
        micro_batches=2, options=options,
    )  # fmt: skip


def test_as_few_layers_as_the_bytes_allow_are_computed_again() -> None:
    whole = asked(2**33)
    most = whole.takes[0].peak
    assert whole.layout.again == 0
    found = [asked(most * share // 100) for share in (90, 70, 50)]
    counts = [one.layout.again for one in found]
    assert 0 < counts[0] < counts[1] < counts[2] < 8
    for one, (before, after) in zip(found, itertools.pairwise([0, *counts]), strict=True):
        assert judge_ranks(one.plan).peaks[0] <= one.limit
        assert before < after
        assert one.plan.ns < 1.4 * whole.plan.ns
    assert [one.plan.ns for one in found] == sorted(one.plan.ns for one in found)
    with pytest.raises(InfeasibleError):
        asked(most // 2, again=False)


def a100(devices: int) -> Machine:
    rates = {"matmul": 19.5e12, "matmul-bfloat16": 312e12}
    memory = Tier("hbm", 80_000_000_000, read=2.039e12, write=2.039e12)
    return Machine("a100", (memory,), rates, device="cuda", devices=devices, links=LINKS)


def at_length(size: str, ranks: int, **more: Any) -> RanksEstimate:
    """A step of 8,192 tokens per micro-batch with Adam in bf16, divided."""
    tokens = torch.zeros(1, 8192, dtype=torch.long, device="meta")
    return estimate_ranks(
        llama(size), tokens, ranks=ranks, machine=a100(ranks), micro_batches=ranks, optimizer_states=2.0,
        precision="bf16", sharded=True, **more,
    )  # fmt: skip


def test_a_block_of_70_billion_parameters_keeps_what_one_computes_by_hand() -> None:
    """In units of tokens x width x 2 bytes: see the sum; and 64 logarithms of sums per token in float32."""
    block = llama("70B")[1]
    x = torch.zeros(1, 8192, 8192, dtype=torch.bfloat16, device="meta")
    unit = 8192 * 8192 * 2
    told = shape_layers([nn.Identity(), block.bfloat16(), nn.Identity()], x, a100(1))[1]
    # normed twice, q, k, v, attention by heads and by rows, residual; inside gate, up, SiLU, product
    rotation = 2 * unit // 8192 * 64 * 2  # cosines and sines, made there
    by_hand = (2 + 1 + 2 / 8 + 2 + 1) * unit + 4 * 3.5 * unit + 8192 * (64 + 2) * 4
    assert abs(told.saved - by_hand) <= 0.02 * by_hand + rotation


@pytest.mark.slow
def test_70_billion_parameters_fit_64_devices_at_45_gigabytes() -> None:
    begin = time.process_time()
    found = at_length("70B", 64, pipeline=1, budget="45GB")
    assert found.layout.by_layer
    assert 30e9 <= max(judge_ranks(found.plan).peaks) <= 45e9
    assert time.process_time() - begin < 60
    held = 16 * sum(p.numel() for layer in llama("70B") for p in layer.parameters()) / 64
    assert abs(found.takes[0].held - held) <= 1e-4 * held


@pytest.mark.slow
def test_405_billion_parameters_are_planned_on_1024_devices() -> None:
    found = at_length("405B", 1024, pipeline=16, tensor=8)  # as Llama 3 was trained
    assert found.layout.again > 0
    assert max(judge_ranks(found.plan).peaks) <= 80e9
