"""P2, P7, P8: real ranks whose layers sleep for a known time (timed stages), in one run with torch's."""

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.micro.rows import Row
from tightrope.core import DeviceLink, Machine, Tier
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.pipeline import folded, gpipe, interleaved, looped, lower, one_f_one_b, with_wires
from tightrope_ranks.pipeline._torch import PlannedStage, torch_orders
from tightrope_ranks.pipeline.launch import run_ranks
from tightrope_ranks.pipeline.run import PipelineRun
from tightrope_ranks.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline, staged
from tightrope_ranks.values.ranks import JointPlan, StageCost, StageWork

RANKS, LAYERS, MICRO = 4, 16, 8
FORWARD, BACKWARD, WEIGHT = 0.030, 0.030, 0.030
KEPT = 2**20
"""Bytes that a layer keeps per micro-batch."""


def machine(latency: float) -> Machine:
    """Describe this host, with a latency that was measured in the same run."""
    link = DeviceLink("loopback", latency=latency, bandwidth=1e9)
    return Machine("this host", (Tier("dram", 2**34),), devices=RANKS, links=(link,))


IDLE = 0.25
"""A computer is idle where its processors are busy for a smaller share: the ranks mostly sleep."""
LATENCY: list[float] = [1e-3]
"""Seconds per message, as measured."""


def calibrate(rank: int, num_ranks: int, rounds: int) -> tuple[list[float], list[float]]:
    """Measure, beside ranks that sleep: how much longer a sleep takes, and how long a message takes."""
    over, late = [], []
    for _ in range(rounds):
        got, sent = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        coming = dist.irecv(got, (rank - 1) % num_ranks)
        begin = time.monotonic()
        time.sleep(FORWARD)
        over.append(time.monotonic() - begin - FORWARD)
        sent[0] = time.monotonic()
        going = dist.isend(sent, (rank + 1) % num_ranks)
        begin = time.monotonic()
        assert coming is not None
        coming.wait()
        late.append(time.monotonic() - max(begin, float(got[0])))
        assert going is not None
        going.wait()
    return over, late


def processors() -> tuple[int, int]:
    """Read how long all processors were idle, and were there, in ticks; both 0 where nothing says so."""
    file = Path("/proc/stat")
    if not file.exists():
        return 0, 0
    ticks = [int(word) for word in file.read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def mean(values: list[float]) -> float:
    """Mean."""
    return sum(values) / len(values)


class Sleep(torch.autograd.Function):
    """Sleep forwards and backwards, and keep some bytes between."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, holder: "Timed") -> torch.Tensor:
        time.sleep(holder.layers * FORWARD)
        ctx.save_for_backward(torch.empty(holder.layers * KEPT, dtype=torch.uint8))
        ctx.holder = holder
        return x + 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        time.sleep(ctx.holder.back)
        return grad + 0, None


class Timed(torch.nn.Module):
    """A stage of some layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.back = layers * (BACKWARD + WEIGHT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Sleep.apply(x, self)  # type: ignore[no-untyped-call]
        return made


class TimedStage(PlannedStage):
    """A stage whose halves of a backward sleep for their own times."""

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        module, full = self.submod, kwargs.get("full_backward", True)
        assert isinstance(module, Timed)
        module.back = module.layers * (BACKWARD + (WEIGHT if full else 0))
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if not full and self.is_first:  # torch leaves all of it to the second half there
            time.sleep(module.back)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        module = self.submod
        assert isinstance(module, Timed)
        module.back = module.layers * WEIGHT
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        if not self.is_first:
            time.sleep(module.back)


def layers() -> tuple[StageCost, ...]:
    """Costs of the layers."""
    return tuple(
        StageCost(
            round(FORWARD * 1e9), round(BACKWARD * 1e9), round(WEIGHT * 1e9),
            input=256 if k else 0, output=256 if k + 1 < LAYERS else 0, saved=KEPT, half=KEPT, work=0,
        )
        for k in range(LAYERS)
    )  # fmt: skip


def task(budget: int = 0) -> PipelineTask:
    """What is planned."""
    return PipelineTask(layers(), machine(LATENCY[0]), RANKS, MICRO, budget)


def work(owners: tuple[int, ...]) -> StageWork:
    """The layers in stages."""
    return staged(task(), owners)


def published() -> dict[str, JointPlan]:
    """Orders of torch and their like as plans."""
    single, loop, fold = work(looped(RANKS, 1)), work(looped(RANKS, 4)), work(folded(RANKS))
    found = {
        "GPipe": (single, with_wires(single, gpipe(RANKS, MICRO))),
        "1F1B": (single, with_wires(single, one_f_one_b(RANKS, MICRO))),
        "Interleaved1F1B": (loop, with_wires(loop, interleaved(RANKS, 4, MICRO))),
        "LoopedBFS": (loop, torch_orders("LoopedBFS", RANKS, 4, MICRO)),
        "ZBVZeroBubble": (fold, torch_orders("ZBVZeroBubble", RANKS, 2, MICRO)),
    }
    return {name: lower(one, machine(LATENCY[0]), order) for name, (one, order) in found.items()}


def measure(
    rank: int, num_ranks: int, plans: dict[str, tuple[JointPlan, int]], rounds: int
) -> dict[str, Any]:
    """Run plans in turns; return seconds per step and the peak of this rank's allocator, by plan."""
    found: dict[str, Any] = {name: [] for name in plans}
    hook = allocator()
    runs = {}
    for name, (plan, limit) in plans.items():
        own = {stage: Timed(LAYERS // len(plan.work.stages)) for stage in plan.work.local(rank)}
        runs[name] = PipelineRun(
            plan, own, lambda output, target: output.sum(), limit=limit or None, kind=TimedStage
        )
    for turn in range(rounds + 1):
        for name, run in runs.items():
            first, last = run.plan.work.owners[0] == rank, run.plan.work.owners[-1] == rank
            inputs = [torch.zeros(MICRO, 64, requires_grad=True)] if first else []
            dist.barrier()
            before = hook.stats().heap_live
            hook.reset_peaks()
            begin = time.monotonic()
            error = ""
            try:
                run.step(*inputs, target=torch.zeros(MICRO, 1) if last else None)
            except torch.OutOfMemoryError as refusal:
                error = str(refusal)[:80]
            dist.barrier()
            spent = time.monotonic() - begin
            if turn:  # the first step sets torch's runtime up
                found[name].append((spent, hook.stats().heap_peak - before, error))
    return found


def _medians(plans: dict[str, tuple[JointPlan, int]], rounds: int) -> dict[str, tuple[float, int]]:
    """Median seconds over the rounds, of the slowest rank; largest peak of any rank."""
    answers = run_ranks(measure, RANKS, plans, rounds, seconds=280.0, silence=60.0)
    found = {}
    for name in plans:
        times = sorted(max(answer[name][k][0] for answer in answers) for k in range(rounds))
        found[name] = times[len(times) // 2], max(one[1] for answer in answers for one in answer[name])
    return found


def rows(quick: bool) -> list[Row]:
    """P2, P7, P8 in one run."""
    both = run_ranks(calibrate, RANKS, 20 if quick else 60)
    LATENCY[0] = round(mean([one for _, late in both for one in late]), 6)
    over = mean([one for some, _ in both for one in some])
    options = PipelineOptions(again=False, seconds=6.0)
    whole = PipelineOptions(again=False, split=False, seconds=4.0)
    plans = {name: (plan, 0) for name, plan in published().items()}
    plans["ours"] = plan_pipeline(task(), options), 0
    plans["ours, whole backwards"] = plan_pipeline(task(), whole), 0
    budget = round(0.6 * max(rank.peak for rank in plans["LoopedBFS"][0].ranks))
    plans["ours, 60 % of LoopedBFS' bytes"] = plan_pipeline(task(budget), options), 0
    before = processors()
    found = _medians(plans, 1 if quick else 3)
    idle, whole_time = (after - start for start, after in zip(before, processors(), strict=True))
    busy = 1 - idle / max(1, whole_time)
    errors = {name: found[name][0] / (plan.ns / 1e9) - 1 for name, (plan, _) in plans.items()}
    worst = max(errors, key=lambda name: abs(errors[name]))
    most = 0.05 if busy < IDLE else 0.10
    said = ", ".join(
        f"{name} {1e3 * s:.0f} ms ({100 * errors[name]:+.1f} %)" for name, (s, _) in found.items()
    )
    speed = found["1F1B"][0] / found["ours"][0]
    plain = found["1F1B"][0] / found["ours, whole backwards"][0]
    peer, ours, less = (found[name] for name in ("LoopedBFS", "ours", "ours, 60 % of LoopedBFS' bytes"))
    mib = 2**20
    accuracy = (
        f"worst {worst}: {said}; measured {1e3 * LATENCY[0]:.1f} ms per message, sleeps {1e3 * over:.1f} ms "
        "too long (timed stages)"
    )
    faster = f"{speed:.2f}x by {plans['ours'][0].method}; {plain:.2f}x with whole backwards (timed stages)"
    beside = (
        f"{1e3 * ours[0]:.0f} ms, {ours[1] / mib:.1f} MiB; with a budget of 60 %: {1e3 * less[0]:.0f} ms, "
        f"{less[1] / mib:.1f} MiB (timed stages, counted bytes)"
    )
    never_worse = ours[0] <= peer[0] and ours[1] <= peer[1] and less[1] <= budget + mib
    asked = f"simulated within {100 * most:.0f} % of timed (processors {100 * busy:.0f} % busy)"
    one_f = f"1F1B {1e3 * found['1F1B'][0]:.0f} ms"
    bfs = f"{1e3 * peer[0]:.0f} ms, {peer[1] / mib:.1f} MiB"
    return [
        Row("P2", asked, accuracy, abs(errors[worst]) <= most),
        Row("P7", ">= 1.2x over torch's 1F1B, 4 ranks", faster, speed >= 1.2, one_f),
        Row(
            "P8", "<= torch's LoopedBFS in time and bytes; runs below M activations", beside, never_worse, bfs
        ),
    ]
