"""X2 and X3: GPT-2 on four gloo ranks under a byte limit per rank, and what happens when one is killed."""

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.micro.rows import Row
from benchmarks.ranks.example import load_example
from tightrope.core import RankError
from tightrope.native.hook.allocator import allocator
from tightrope_ranks import PipelineOptions, PipelineRun, plan, run_ranks
from tightrope_ranks.values.ranks import JointPlan

example = load_example()
RESERVE = 128 * 1024
"""Bytes of a rank that are left to what no plan sees: inputs, losses, the optimizer's numbers."""


def make(budget: int | None, options: PipelineOptions) -> JointPlan:
    """Plan the model of the example."""
    ids = example.batch()[: example.ROWS]
    count, ranks = example.MICRO, example.RANKS
    layers, loss = example.layers(), example.loss
    return plan(layers, ids, ids, loss, ranks=ranks, micro_batches=count, budget=budget, options=options)


def mine(made: JointPlan, rank: int) -> dict[int, torch.nn.Module]:
    """The stages of a rank."""
    whole, count = example.layers(), len(made.work.stages)
    cut = [len(whole) * k // count for k in range(count + 1)]
    return {s: torch.nn.Sequential(*whole[cut[s] : cut[s + 1]]) for s in made.work.local(rank)}


def run(rank: int, num_ranks: int, made: JointPlan, limit: int) -> dict[str, Any]:
    """Two steps on this rank: its peak, and the gradients of the second one."""
    hook = allocator()
    before = hook.stats().charged
    stages = mine(made, rank)
    for stage in stages.values():
        for parameter in stage.parameters():
            parameter.grad = torch.zeros_like(parameter)
    step = PipelineRun(made, stages, example.loss, limit=before + limit if limit else None)
    ids = example.batch()
    hook.reset_peaks()
    for _ in range(2):
        for stage in stages.values():
            stage.zero_grad(set_to_none=False)
        losses = step.step(*([ids] if 0 in stages else []), target=ids)
    grads = {s: [p.grad.numpy() for p in one.parameters() if p.grad is not None] for s, one in stages.items()}
    return {
        "peak": hook.stats().charged_peak - before,
        "grads": grads,
        "losses": [float(x.detach()) for x in losses],
    }


def serial() -> list[list[torch.Tensor]]:
    """Gradients of every layer, added up by one process."""
    layers = example.layers()
    for ids in example.batch().chunk(example.MICRO):
        x: torch.Tensor = ids
        for layer in layers:
            x = layer(x)
        example.loss(x, ids).backward()
    return [[p.grad / example.MICRO for p in one.parameters() if p.grad is not None] for one in layers]


def rows_limit(quick: bool) -> list[Row]:
    """X2: 60 % of what GPipe needs."""
    plain = PipelineOptions(
        (1,), fold=False, split=False, again=False, listing=False, improve=False, ascending=True
    )
    whole = run_ranks(run, example.RANKS, _gpipe(make(None, plain)), 0)
    need = max(one["peak"] for one in whole)
    limit = need * 6 // 10
    made = make(limit - RESERVE, PipelineOptions(split=False, ascending=True))
    found = run_ranks(run, example.RANKS, made, limit)
    peaks = [one["peak"] for one in found]
    wanted = [grad for some in serial() for grad in some]
    stages = {s: grads for one in found for s, grads in one["grads"].items()}
    mine_ = [torch.from_numpy(grad) for s in sorted(stages) for grad in stages[s]]
    same = len(mine_) == len(wanted) and all(torch.equal(a, b) for a, b in zip(mine_, wanted, strict=True))
    forecast = [rank.peak for rank in made.ranks]
    off = max(abs(a / b - 1) for a, b in zip(peaks, forecast, strict=True))
    return [
        Row(
            "X2",
            "limit 60 % of what GPipe needs on 4 ranks: bit-equal to one process, never above the limit",
            f"GPipe {need} bytes, limit {limit}, peaks {peaks} (forecast {forecast}, at most "
            f"{100 * off:.1f} % off); gradients {'bit-equal' if same else 'DIFFER'}; {made.method} "
            "(real gloo ranks)",
            same and max(peaks) <= limit,
        )
    ]  # fmt: skip


def _gpipe(made: JointPlan) -> JointPlan:
    """The same work in GPipe's order."""
    from tightrope_ranks.pipeline import gpipe, lower, with_wires

    order = gpipe(example.RANKS, example.MICRO)
    return lower(made.work, made.machine, with_wires(made.work, order))


class Bomb(torch.nn.Module):
    """Kills its process in the third forward."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.count = folder, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count == 3 + example.MICRO:
            (Path(self.folder) / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return x


def doomed(rank: int, num_ranks: int, made: JointPlan, victim: int, folder: str) -> None:
    """Two steps; one rank is killed in the second."""
    stages = mine(made, rank)
    if rank == victim:
        stage = min(stages)
        stages[stage] = torch.nn.Sequential(stages[stage], Bomb(folder))
    step = PipelineRun(made, stages, example.loss)
    ids = example.batch()
    try:
        for _ in range(2):
            step.step(*([ids] if 0 in stages else []), target=ids)
    except RankError as error:
        (Path(folder) / f"rank{rank}").write_text(f"{time.time()} {error}")
        raise


def rows_killed(quick: bool) -> list[Row]:
    """X3: each of the ranks is killed in mid-step once."""
    plain = PipelineOptions(
        (1,), fold=False, split=False, again=False, listing=False, improve=False, ascending=True
    )
    made = make(None, plain)
    slowest, clear, left = 0.0, 0, 0
    victims = (1,) if quick else (0, 1, 3)
    shared = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    for victim in victims:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_ranks(doomed, example.RANKS, made, victim, folder, silence=4.0)
            except RankError as error:
                clear += "exit code -9" in str(error)
            over = time.time()
            killed = float((Path(folder) / "killed").read_text())
            told = [Path(folder) / f"rank{rank}" for rank in range(example.RANKS) if rank != victim]
            clear += all(file.is_file() for file in told)
            slowest = max(
                [
                    slowest,
                    over - killed,
                    *(float(f.read_text().split()[0]) - killed for f in told if f.is_file()),
                ]
            )
    if Path("/dev/shm").is_dir():
        left = len(set(Path("/dev/shm").iterdir()) - shared)
    return [
        Row(
            "X3",
            "a rank killed in mid-step: the others end with a clear error in <= 10 s, nothing is left",
            f"{len(victims)} victims: all ended {slowest:.1f} s after the kill, silence allowed "
            f"4 s; {clear} of {2 * len(victims)} reports clear, {left} pieces of shared memory and no "
            "process left (real gloo ranks)",
            slowest <= 10 and clear == 2 * len(victims) and not left,
        )
    ]  # fmt: skip
