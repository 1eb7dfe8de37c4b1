"""P4: the planner against the best of torch's seven schedules, at equal bytes per rank (simulated)."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.micro.rows import Row
from benchmarks.ranks import units
from tightrope.core import TightropeError
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline import folded, looped, simulate
from tightrope_ranks.pipeline._torch import SCHEDULES, torch_orders
from tightrope_ranks.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline, staged


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


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one question gave: nanoseconds of ours, of the best of torch's that fits, and which those are."""

    number: int
    ours: int | None
    best: int | None
    method: str = ""
    peer: str = ""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answers so far, and what they are answers to."""

    seed: int
    count: int
    seconds: float
    measured: tuple[Measured, ...] = ()


def measured(number: int, point: Point, *, seed: int, seconds: float) -> Measured:
    """Plan one point, and simulate torch's schedules on it."""
    asked = task(point)
    fits = {name: ns for name, (ns, peak) in peers(asked).items() if peak <= asked.budget}
    peer = min(fits, key=lambda name: fits[name], default="")
    try:
        plan = plan_pipeline(asked, PipelineOptions(seconds=seconds, seed=seed))
    except TightropeError:
        return Measured(number, None, fits.get(peer), "", peer)
    judge_ranks(plan)
    return Measured(number, plan.ns, fits.get(peer), plan.method, peer)


def _known(file: Path | None, asked: Kept) -> Kept:
    """Read the answers of earlier parts.

    Raises:
        TightropeError: they are answers to something else.
    """
    if file is None or not file.exists():
        return asked
    found = msgspec.json.decode(file.read_bytes(), type=Kept)
    if (found.seed, found.count, found.seconds) != (asked.seed, asked.count, asked.seconds):
        raise TightropeError(f"{str(file)!r} has points of another seed, count or search: give another file.")
    return found


def rows(
    quick: bool,
    *,
    seed: int = 4,
    seconds: float = 1.5,
    file: Path | None = None,
    at_most: float = float("inf"),
) -> list[Row]:
    """P4: count points that are not slower, and those that are 5 % faster.

    Args:
        quick: 24 points, else 200.
        seed: of the points and of the search.
        seconds: of search per point, CPU time.
        file: where answers are kept; those that are there are not asked again.
        at_most: CPU seconds of this part.
    """
    kept = _known(file, Kept(seed, 24 if quick else 200, seconds))
    end, known = time.process_time() + at_most, {one.number for one in kept.measured}
    for number, point in enumerate(points(seed, kept.count)):
        if number not in known and time.process_time() < end:
            one = measured(number, point, seed=seed, seconds=seconds)
            kept = msgspec.structs.replace(kept, measured=(*kept.measured, one))
            if file is not None:
                file.write_bytes(msgspec.json.encode(kept))
    return [_row(kept)]


def _row(kept: Kept) -> Row:
    both = [(one, one.best / one.ours - 1) for one in kept.measured if one.ours and one.best]
    gains = sorted(gain for _, gain in both)
    lost = [one for one in kept.measured if one.best and not one.ours]
    slower = sum(gain < 0 for gain in gains) + len(lost)
    faster = sum(gain >= 0.05 for gain in gains)
    alone = sum(one.ours is not None and one.best is None for one in kept.measured)
    neither = sum(one.ours is None and one.best is None for one in kept.measured)
    share, middle = faster / max(1, len(gains)), gains[len(gains) // 2] if gains else 0.0
    worst = ""
    if slower:
        one, gain = min(both, key=lambda pair: pair[1])
        worst = f"; worst: point {one.number}, {100 * gain:.1f} % against {one.peer}, by {one.method}"
        worst = f"; point {lost[0].number}: found nothing where {lost[0].peer} fits" if lost else worst
    done = len(kept.measured)
    part = "" if done == kept.count else f"only {done} points so far: "
    return Row(
        "P4",
        f"{kept.count} points (seed {kept.seed}): never slower than the best of torch's seven that fits, "
        ">= 5 % faster on >= 30 %",
        f"{part}slower on {slower}; >= 5 % faster on {faster} of {len(gains)} ({100 * share:.0f} %), median "
        f"{100 * middle:+.1f} %, least {100 * min(gains, default=0.0):+.1f} %; {alone} more where none "
        f"of torch's fits, {neither} where nothing does (simulated){worst}",
        slower == 0 and share >= 0.3 and done == kept.count,
    )
