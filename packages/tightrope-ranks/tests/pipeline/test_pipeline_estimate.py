"""What is told of a step on many ranks holds, and what cannot be told is refused with a way on."""

import pytest
import torch

from tightrope.core import DeviceLink, InfeasibleError, Machine, Tier, TightropeError
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.inside import ring_ns
from tightrope_ranks.pipeline.measure import shape_layers
from tightrope_ranks.pipeline.rank_layout import RankLayout as Layout
from tightrope_ranks.pipeline.replicas import exchanged
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.together import ring_within

WITHOUT_TIME = PipelineOptions(ascending=True, split=False, again=False, seconds=0.0)
"""What is tried whatever the time: the same plan on any computer."""
INSIDE, BETWEEN = DeviceLink("inside", 1e-6, 1e11, span=4), DeviceLink("between", 1e-5, 1e9, level=1)


RAM = Tier("ram", 2**20)


def cluster(devices: int = 8, *, size: int = 2**30) -> Machine:
    return Machine(
        "cluster", (Tier("hbm", size),), {"matmul": 1e12}, devices=devices, links=(INSIDE, BETWEEN)
    )


def layers(num: int = 4) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64, device="meta") for _ in range(num)))


X = torch.empty(32, 64, device="meta")


def told(ranks: int = 8, num: int = 4, **asked: object) -> RanksEstimate:
    machine = asked.pop("machine", cluster(ranks))
    options = asked.pop("options", WITHOUT_TIME)
    return estimate_ranks(layers(num), X, ranks=ranks, machine=machine, options=options, **asked)  # type: ignore[arg-type]


def test_the_answer_is_the_fastest_layout_and_the_judge_accepts_it() -> None:
    found = told()
    assert [(one.layout.pipeline, one.layout.replicas) for one in found.tried] == [(1, 8), (2, 4), (4, 2)]
    assert all(one.layout.replicas * one.layout.micro_batches == 16 for one in found.tried)
    assert found.plan.ns == min(one.ns for one in found.tried if one.ns is not None)
    verdict = judge_ranks(found.plan)
    assert tuple(one.peak for one in found.takes) == verdict.peaks
    assert verdict.ns == found.plan.ns >= max(one.compute_ns for one in found.takes)
    assert max(verdict.peaks) <= found.limit == 2**30
    covered = sorted(some for one in found.takes for some in one.layers)
    assert [a for a, _ in covered] + [4] == [0] + [b for _, b in covered]


@pytest.mark.parametrize("sharded", [False, True])
def test_replicas_alone_take_their_share_and_one_ring(sharded: bool) -> None:
    """One stage on one rank: every micro-batch, then the sum, nothing else; in closed form."""
    options = PipelineOptions((1,), ascending=True, split=False, again=False, seconds=0.0)
    found = told(pipeline=1, sharded=sharded, options=options)
    (take,) = found.takes
    ring = sum(
        ring_ns(ring_within(cluster(), 8), one.parameters, 8, rounds=1 if sharded else 2)
        for one in shape_layers(tuple(layers()), X, cluster())
    )
    assert take.exchange_ns == ring * (2 if sharded else 1)  # divided: they are gathered first
    assert found.plan.ns == take.compute_ns + take.exchange_ns
    assert (take.held < told(pipeline=1, options=options).takes[0].held) == sharded


def test_a_ring_takes_what_its_steps_take() -> None:
    """Each of n ranks passes an n-th on, n - 1 times to reduce and n - 1 times to hand out."""
    link = DeviceLink("link", latency=3e-6, bandwidth=1e9)
    for replicas in (2, 3, 8, 64):
        steps = [3000 + 6400 / replicas for _ in range(2 * (replicas - 1))]
        assert abs(ring_ns(link, 6400, replicas, rounds=2) - sum(steps)) <= 1
    assert ring_ns(link, 6400, 1, rounds=2) == ring_ns(link, 0, 8, rounds=2) == 0


def test_replicas_within_a_node_use_its_link() -> None:
    costs = shape_layers(tuple(layers()), X, cluster())
    near = exchanged(costs, cluster(), Layout(2, 4, 4), sharded=False)
    far = exchanged(costs, cluster(), Layout(1, 8, 2), sharded=False)
    assert near[0].reduce == ring_ns(INSIDE, costs[0].parameters, 4, rounds=2)
    assert far[0].reduce == ring_ns(ring_within(cluster(), 8), costs[0].parameters, 8, rounds=2)
    assert near[0].gather == 0 < exchanged(costs, cluster(), Layout(1, 8, 2), sharded=True)[0].gather


def test_a_dtype_with_a_rate_of_its_own_is_timed_by_it() -> None:
    fast = Machine("fast", (Tier("hbm", 2**30, read=1e15),), {"matmul": 1e9, "matmul-bfloat16": 1e12})
    (slow,) = shape_layers(tuple(layers(1)), X, fast)
    (quick,) = shape_layers(tuple(layers(1).bfloat16()), X.bfloat16(), fast)
    assert abs(slow.forward / quick.forward - 1000) < 10


def test_a_thousand_ranks_are_told_from_shapes() -> None:
    found = told(1024, 8, micro_batches=1024)
    assert found.layout.pipeline * found.layout.replicas == 1024
    assert found.layout.micro_batches * found.layout.replicas == 1024
    assert len(found.takes) == found.layout.pipeline


def test_too_few_bytes_are_refused_with_what_is_enough() -> None:
    with pytest.raises(InfeasibleError, match="smallest plan found") as refused:
        told(budget=1000)
    enough = refused.value.smallest_found
    assert enough is not None
    assert f"({enough} bytes)" in str(refused.value)
    found = told(budget=enough)
    assert max(one.peak for one in found.takes) <= enough == found.limit


def test_what_is_too_long_to_try_is_said() -> None:
    with pytest.raises(TightropeError, match=r"not tried: 256 .* give fewer micro-batches"):
        told(256, 256, micro_batches=256, pipeline=256)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"pipeline": 8}, "a stage needs a layer, and the model has 4. Give at most 4"),
        ({"pipeline": 3}, r"pipeline=3 does not divide 8 ranks: give one of \[1, 2, 4\]"),
        ({"micro_batches": 1}, "micro_batches=1 cannot be divided .* multiple of 8"),
        ({"micro_batches": 0}, "micro_batches=0: give a whole number"),
        ({"machine": cluster(4)}, "8 ranks need as many devices; machine 'cluster' has devices = 4"),
        ({"machine": Machine("m", (RAM,), {"matmul": 1e9}, devices=8)}, "no link between devices"),
        ({"machine": Machine("m", (RAM,), devices=8, links=(BETWEEN,))}, "no flops.matmul"),
    ],
)  # fmt: skip
def test_questions_without_an_answer_are_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        told(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [0, 1025, 2.0])
def test_numbers_of_ranks_that_are_refused(ranks: int) -> None:
    with pytest.raises(TightropeError, match="from 1 to 1024"):
        told(ranks, machine=cluster())


def test_models_that_are_no_sequence_are_refused() -> None:
    def asked(model: object, example: object = X) -> None:
        estimate_ranks(model, example, ranks=2, machine=cluster())  # type: ignore[arg-type]

    class Pair(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    with pytest.raises(TightropeError, match="class Linear is no sequence of layers"):
        asked(torch.nn.Linear(2, 2))
    with pytest.raises(TightropeError, match="no sequence of layers"):
        asked(torch.nn.Sequential())
    with pytest.raises(TightropeError, match=r"layer 1 \(Pair\) returns tuple"):
        asked([torch.nn.Linear(64, 64), Pair()])
    with pytest.raises(TightropeError, match=r"layer 1 \(Linear\) fails on a tensor of shape \(32, 64\)"):
        asked([torch.nn.Linear(64, 64), torch.nn.Linear(63, 64)])
    with pytest.raises(TightropeError, match="called with list"):
        asked(layers(), [1])
