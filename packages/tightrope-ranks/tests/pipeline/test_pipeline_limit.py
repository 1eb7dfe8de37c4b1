"""The budget of a plan is a limit that its ranks hold: the batch and the losses are counted too."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import tightrope_ranks
from benchmarks.ranks.titan import Wide
from tightrope import OutOfBudgetError
from tightrope.core import InfeasibleError
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.pipeline._torch import _Begun
from tightrope_ranks.values.ranks import JointPlan

MICRO, ROWS, WIDTH = 8, 64, 128


def batch() -> torch.Tensor:
    return torch.randn(MICRO * ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def planned(ranks: int, budget: int | None) -> JointPlan:
    layers, x = [Wide(seed, WIDTH) for seed in range(4)], batch()[:ROWS].clone()
    return tightrope_ranks.plan(layers, x, x, mse_loss, ranks=ranks, micro_batches=MICRO, budget=budget)


def smallest(ranks: int) -> int:
    with pytest.raises(InfeasibleError) as caught:
        planned(ranks, 1)
    assert caught.value.smallest_found is not None
    return caught.value.smallest_found


def trained(rank: int, num_ranks: int, plan: JointPlan, limit: int | None) -> int:
    """Run two steps; return the most bytes above what was there before."""
    before, stages = allocator().stats().charged, len(plan.work.stages)
    mine = {
        stage: torch.nn.Sequential(*(Wide(seed, WIDTH) for seed in range(4) if seed * stages // 4 == stage))
        for stage in plan.work.local(rank)
    }
    first, last = 0 in mine, stages - 1 in mine
    x, y = (batch() if here else None for here in (first, last))
    run = tightrope_ranks.PipelineRun(plan, mine, mse_loss, limit=limit and limit + before)
    allocator().reset_peaks()
    for _ in range(2):
        run.step(*([x] if first else []), target=y)
    return allocator().stats().charged_peak - before


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_one_rank_takes_what_was_forecast() -> None:
    budget = smallest(1)
    plan = planned(1, budget)
    most = trained(0, 1, plan, budget)
    assert 0.8 * plan.ranks[0].peak < most <= plan.ranks[0].peak <= budget
    with pytest.raises(OutOfBudgetError):
        trained(0, 1, plan, most // 2)


def test_what_is_computed_again_counts_batches_once() -> None:
    """A checkpoint of torch's lets a batch norm see each micro-batch twice."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5))
    again, x, found = copy.deepcopy(plain), torch.randn(2, 3, 8, 8), []
    for net in (plain, again):
        torch.manual_seed(7)
        begun = [_Begun(net, draws=True) for _ in range(2)]
        results = [
            net(x * k) if net is plain else checkpoint(
                net, x * k, use_reentrant=False, preserve_rng_state=False,
                context_fn=lambda one=one: (one.first(), one.again()),
            )
            for k, one in enumerate(begun, 1)
        ]  # fmt: skip
        for result in results:
            result.square().sum().backward()
        found.append([*net.state_dict().values(), *(p.grad for p in net.parameters()), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_what_is_computed_again_draws_the_same_numbers(drop: float) -> None:
    layers = [torch.nn.Sequential(Wide(seed, WIDTH), torch.nn.Dropout(drop)) for seed in range(2)]
    x = batch()

    def made(budget: int) -> JointPlan:
        return tightrope_ranks.plan(
            layers, x[:ROWS], x[:ROWS], mse_loss, ranks=1, micro_batches=MICRO, budget=budget
        )

    with pytest.raises(InfeasibleError) as caught:
        made(1)
    assert caught.value.smallest_found is not None
    plan = made(caught.value.smallest_found)
    assert "computed again" in plan.method
    each = len(layers) // len(plan.work.stages)
    stages = {k: torch.nn.Sequential(*layers[k * each : (k + 1) * each]) for k in plan.work.local(0)}
    found, states = [], []
    for run in (lambda: tightrope_ranks.PipelineRun(plan, stages, mse_loss).step(x, target=x), None):
        torch.manual_seed(5)
        losses = (
            run() if run else [mse_loss(torch.nn.Sequential(*layers)(one), one) for one in x.chunk(MICRO)]
        )
        if run is None:
            for loss in losses:
                (loss / MICRO).backward()
        found.append([*losses, *(p.grad for layer in layers for p in layer.parameters())])
        states.append(torch.get_rng_state())
        for layer in layers:
            layer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert torch.equal(*states)


@pytest.mark.slow
def test_freed_blocks_leave_the_process() -> None:
    """In a process of its own, since glibc keeps the setting: blocks of 2 MiB after one of 16."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from tightrope_ranks.pipeline.run import give_back_at_once\n"
        "def held():\n"
        "    lines = Path('/proc/self/smaps_rollup').read_text().splitlines()\n"
        "    return next(int(one.split()[1]) for one in lines if one.startswith('Private_Dirty'))\n"
        "if 'set' in sys.argv: give_back_at_once()\n"
        "before = held()\n"
        "del [torch.ones(2**22)][:]\n"
        "some = [torch.ones(2**19) for _ in range(32)]\n"
        "del some[:31]\n"
        "print(held() - before)\n"
    )
    kept = [
        int(
            subprocess.run(
                [sys.executable, "-c", code, *how], capture_output=True, check=True, text=True
            ).stdout
        )
        for how in ([], ["set"])
    ]
    assert kept[1] < 6 * 1024 < 40 * 1024 < kept[0]


@pytest.mark.slow
def test_ranks_run_in_the_budget_of_their_plan() -> None:
    budget = smallest(2)
    plan = planned(2, budget)
    most = tightrope_ranks.run_ranks(trained, 2, plan, budget)
    assert all(taken <= rank.peak <= budget for taken, rank in zip(most, plan.ranks, strict=True))
