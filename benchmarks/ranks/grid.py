"""P4: the planner against the best of torch's seven schedules, at equal bytes per rank (simulated)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.micro.rows import Row
from benchmarks.ranks import units
from tightrope.core import TightropeError
from tightrope.judge.ranks import judge_ranks
from tightrope.parallel.pipeline import folded, looped, simulate
from tightrope.parallel.pipeline._torch import SCHEDULES, torch_orders
from tightrope.parallel.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline, staged


@dataclass(frozen=True, slots=True)
class Point:
    """One question: a number of ranks, micro-batches, a latency, traffic of replicas, and a budget."""

    ranks: int
    micro: int
    latency: float
    traffic: str
    budget: float


def points(seed: int, count: int) -> Iterator[Point]:
    """Draw questions; a budget is a number of micro-batches' shares that fit beside what is held."""
    draw = random.Random(seed)
    for _ in range(count):
        ranks = draw.choice((2, 4, 8))
        yield Point(
            ranks,
            draw.choice((ranks, ranks + 1, 2 * ranks, 3 * ranks, 4 * ranks)),
            draw.choice((0.0, 0.25, 1.0)),
            draw.choice(("none", "all-reduce", "divided")),
            draw.choice((0.75, 1.0, 1.25, 2.0, 8.0)),
        )


def task(point: Point) -> PipelineTask:
    """Write a question down for the planner: 4 layers per rank."""
    layers = 4 * point.ranks
    sharded = point.traffic == "divided"
    traffic = {"none": (0, 0, 1), "all-reduce": (0, 4, 2), "divided": (2, 2, 2)}[point.traffic]
    gather, reduce, replicas = traffic
    owners = looped(point.ranks, 4)
    work = units.work(
        owners, layers, point.micro, gather=gather, reduce=reduce, replicas=replicas, sharded=sharded
    )
    held = work.held(0) + (4 * 800 if sharded else 0)
    budget = round(held + point.budget * (point.ranks + 0.5) * 4 * 1100)
    return PipelineTask(
        work.stages, units.machine(point.latency), point.ranks, point.micro, budget, traffic[2], sharded
    )


def peers(asked: PipelineTask) -> dict[str, tuple[int, int]]:
    """Time and bytes of torch's schedules, by name and stages per rank."""
    found = {}
    for name in SCHEDULES:
        fold = name in ("ZBVZeroBubble", "DualPipeV")
        for per_rank in (1,) if name in ("GPipe", "1F1B") else (2,) if fold else (2, 4):
            owners = folded(asked.num_ranks) if fold else looped(asked.num_ranks, per_rank)
            try:
                order = torch_orders(name, asked.num_ranks, per_rank, asked.num_micro, sharded=asked.sharded)
            except TightropeError:
                continue
            work = staged(asked, owners)
            row = simulate(work, asked.machine, order)
            found[f"{name} x{per_rank}"] = (row.ns, max(row.peaks))
    return found


def rows(quick: bool, *, seed: int = 4, seconds: float = 1.5) -> list[Row]:
    """P4: count points that are not slower, and those that are 5 % faster."""
    count = 24 if quick else 200
    slower, faster, alone, neither, total = 0, 0, 0, 0, 0
    gains = []
    worst = ""
    for point in points(seed, count):
        asked = task(point)
        fits = {name: ns for name, (ns, peak) in peers(asked).items() if peak <= asked.budget}
        try:
            plan = plan_pipeline(asked, PipelineOptions(seconds=seconds, seed=seed))
        except TightropeError:
            neither += not fits
            slower += bool(fits)
            worst = f"{point} found nothing" if fits else worst
            continue
        judge_ranks(plan)
        if not fits:
            alone += 1
            continue
        total += 1
        best = min(fits.values())
        gain = best / plan.ns - 1
        gains.append(gain)
        if gain < 0:
            slower += 1
            worst = (
                f"{point}: {100 * gain:.1f} % against {min(fits, key=lambda n: fits[n])}, by {plan.method}"
            )
        faster += gain >= 0.05
    share = faster / max(1, total)
    middle = sorted(gains)[len(gains) // 2] if gains else 0.0
    return [
        Row(
            "P4",
            f"{count} points (seed {seed}): never slower than the best of torch's seven that fits, "
            ">= 5 % faster on >= 30 %",
            f"slower on {slower}; >= 5 % faster on {faster} of {total} ({100 * share:.0f} %), median "
            f"{100 * middle:+.1f} %, least {100 * min(gains, default=0):+.1f} %; {alone} more where none of "
            f"torch's fits, {neither} where nothing does (simulated){'; worst: ' + worst if worst else ''}",
            slower == 0 and share >= 0.3,
        )
    ]
