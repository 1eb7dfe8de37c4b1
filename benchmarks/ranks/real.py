"""P1: gradients of real ranks (gloo processes) against one process that adds them up."""

from typing import Any

import torch

from benchmarks.micro.rows import Row
from benchmarks.ranks import units
from benchmarks.ranks.mutants import halves
from tightrope_ranks.pipeline import (
    Orders,
    breadth_first,
    folded,
    gpipe,
    interleaved,
    looped,
    lower,
    one_f_one_b,
    with_wires,
)
from tightrope_ranks.pipeline._torch import SCHEDULES, torch_orders
from tightrope_ranks.pipeline.launch import run_ranks
from tightrope_ranks.pipeline.run import PipelineRun
from tightrope_ranks.values.ranks import JointPlan

WIDTH, MICRO, ROWS = 16, 8, 2


class Layer(torch.nn.Module):
    """One layer of a net that mixes its features."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.second = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = x + self.second(torch.tanh(self.first(x)))
        return mixed


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    torch.manual_seed(1)
    return torch.randn(MICRO * ROWS, WIDTH), torch.randn(MICRO * ROWS, WIDTH)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error."""
    return torch.nn.functional.mse_loss(output, target)


def serial(num_stages: int) -> list[list[torch.Tensor]]:
    """Gradients of every stage, added up by one process in ascending order of the micro-batches."""
    stages = [Layer(stage) for stage in range(num_stages)]
    inputs, targets = batch()
    for x, y in zip(inputs.chunk(MICRO), targets.chunk(MICRO), strict=True):
        for stage in stages:
            x = stage(x)
        loss(x, y).backward()  # type: ignore[no-untyped-call]
    grads = [[p.grad for p in stage.parameters() if p.grad is not None] for stage in stages]
    return [[grad / MICRO for grad in some] for some in grads]


def plans(num_ranks: int, micro: int = MICRO) -> dict[str, JointPlan]:
    """Plans of every kind of order, each of torch's included."""
    loop2, loop3, fold = looped(num_ranks, 2), looped(num_ranks, 3), folded(num_ranks)
    single = looped(num_ranks, 1)
    orders: dict[str, tuple[tuple[int, ...], Orders]] = {
        "gpipe": (single, gpipe(num_ranks, micro)),
        "1f1b": (single, one_f_one_b(num_ranks, micro)),
        "1f1b, halves": (single, halves(one_f_one_b(num_ranks, micro))),
        "interleaved": (loop2, interleaved(num_ranks, 2, micro)),
        "hybrid": (loop3, interleaved(num_ranks, 3, micro, group=num_ranks + 1)),
        "breadth-first": (loop2, breadth_first(num_ranks, 2, micro)),
        "breadth-first, mirrored": (loop2, breadth_first(num_ranks, 2, micro, mirrored=True)),
    }
    found = {}
    for name, (owners, order) in orders.items():
        work = units.work(owners, len(owners), micro)
        again = [(s, m) for s in range(len(owners)) for m in range(micro) if (s + m) % 2]
        wired = with_wires(work, order)
        found[name] = lower(work, units.machine(0.1), wired)
        if "halves" not in name:
            found[f"{name}, some again"] = lower(work, units.machine(0.1), wired, again=again)
    for name in SCHEDULES:
        single_ = name in ("GPipe", "1F1B")
        owners = fold if name in ("ZBVZeroBubble", "DualPipeV") else single if single_ else loop2
        work = units.work(owners, len(owners), micro)
        order = torch_orders(name, num_ranks, len(owners) // num_ranks, micro)
        found[f"torch's {name}"] = lower(work, units.machine(0.1), order)
    return found


def gradients(rank: int, num_ranks: int, given: dict[str, JointPlan]) -> dict[str, dict[int, Any]]:
    """Run every plan on this rank; return the gradients of its stages."""
    found: dict[str, dict[int, Any]] = {}
    inputs, targets = batch()
    for name, plan in given.items():
        mine = {stage: Layer(stage) for stage in plan.work.local(rank)}
        run = PipelineRun(plan, mine, loss)
        last = plan.work.owners[-1] == rank
        run.step(*([inputs] if 0 in mine else []), target=targets if last else None)
        found[name] = {
            s: [p.grad.numpy() for p in one.parameters() if p.grad is not None] for s, one in mine.items()
        }
    return found


def ascending(plan: JointPlan) -> bool:
    """Tell whether every stage adds its gradients up in ascending order of the micro-batches."""
    last: dict[int, int] = {}
    for rank in plan.ranks:
        for run in rank.executable.runs():
            words = dict(run.keywords)
            stage, micro = words["stage"], words["micro_batch"]
            assert isinstance(stage, int)
            assert isinstance(micro, int)
            if run.target in ("stage.backward", "stage.backward_weight"):
                if micro < last.get(stage, -1):
                    return False
                last[stage] = micro
    return True


def rows(quick: bool) -> list[Row]:
    """P1: every order on 2 and 4 ranks."""
    equal = close = 0
    worst = 0.0
    wrong: list[str] = []
    for num_ranks in (2,) if quick else (2, 4):
        given = plans(num_ranks)
        found = run_ranks(gradients, num_ranks, given)
        for name, plan in given.items():
            wanted = serial(len(plan.work.stages))
            mine = {stage: grads for rank in found for stage, grads in rank[name].items()}
            pairs = [
                (torch.from_numpy(a), b)
                for s, grads in mine.items()
                for a, b in zip(grads, wanted[s], strict=True)
            ]
            error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
            if all(torch.equal(a, b) for a, b in pairs):
                equal += 1
            elif ascending(plan) or error > 1e-6:
                wrong.append(f"{name} on {num_ranks} ranks: {error:.1e}")
            else:
                close, worst = close + 1, max(worst, error)
    said = f"{equal} bit-equal, {close} within {worst:.1e}{'; wrong: ' + ', '.join(wrong) if wrong else ''}"
    return [
        Row(
            "P1",
            "gradients bit-equal for ascending backwards, <= 1e-6 otherwise; all orders x {2, 4} ranks",
            f"{said} (real gloo ranks)",
            not wrong,
        )
    ]
