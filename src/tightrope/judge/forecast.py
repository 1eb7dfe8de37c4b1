"""Compare what a plan says about itself with what its executable does."""

import math
from collections.abc import Sequence
from itertools import accumulate

from tightrope.core import Bytes, Graph, JudgeError, Machine, Plan, QualityLimit, StorageId
from tightrope.judge.footprint import Walk


def check_forecast(graph: Graph, plan: Plan, walk: Walk, machine: Machine | None = None) -> None:
    """Refuse forecast figures that differ from the re-derived ones by a byte or a nanosecond.

    Joules are compared where the plan claims some and the machine is given, to 1 part in 10^9.

    Raises:
        JudgeError: names the figure, the value forecast and the value derived.
    """
    derived = {
        "persistent": graph.persistent,
        "peak": walk.peak,
        "arena": arena_used(walk, placed=plan.placed),
        "outside": walk.outside_peak,
        "ns": walk.ns,
        "base_ns": graph.base_ns,
        "tiers": walk.tiers,
    }
    for name, value in derived.items():
        said = getattr(plan.forecast, name)
        if said != value:
            raise JudgeError(f"forecast: {name} is said to be {said}; the instructions give {value}.")
    said = plan.forecast.joules
    if machine is not None and said and not math.isclose(said, walk.joules, rel_tol=1e-9):
        raise JudgeError(f"forecast: joules is said to be {said}; the instructions give {walk.joules}.")


def arena_used(walk: Walk, *, placed: bool) -> Bytes:
    """Find the highest address that any planned block reaches; without addresses, the live bytes."""
    if not placed:
        return _inside_peak(walk)
    return max((block.offset + block.size for block in walk.intervals if block.offset >= 0), default=0)


def check_limits(plan: Plan) -> None:
    """Refuse a plan whose forecast breaks a limit that it was asked to keep.

    Raises:
        JudgeError: names the limit, what was asked and what the plan takes.
    """
    taken, limits = plan.forecast, plan.limits
    if taken.total > plan.budget:
        raise JudgeError(f"budget: {plan.budget} bytes allowed, {taken.total} taken.")
    if limits.bytes and taken.total > limits.bytes[0]:
        raise JudgeError(f"limits: {limits.bytes[0]} bytes of tier 0 allowed, {taken.total} taken.")
    for tier, (limit, held) in enumerate(zip(limits.bytes[1:], taken.tiers, strict=False), start=1):
        if held > limit:
            raise JudgeError(f"limits: {limit} bytes of tier {tier} allowed, {held} taken.")
    if limits.seconds is not None and taken.ns > limits.seconds * 1e9:
        raise JudgeError(f"limits: {limits.seconds} seconds allowed, {taken.ns} ns taken.")
    if limits.joules is not None and taken.joules > limits.joules:
        raise JudgeError(f"limits: {limits.joules} joules allowed, {taken.joules} taken.")
    if limits.quality is not None:
        _check_quality(limits.quality, taken.quality)


def _check_quality(limit: QualityLimit, values: Sequence[float]) -> None:
    """Refuse metrics that are not measured, or worse somewhere than at each corner.

    Raises:
        JudgeError: names the metrics and their values; of one corner, the metric that is worse.
    """
    if len(values) != len(limit.metrics):
        names = ", ".join(limit.metrics)
        raise JudgeError(f"limits: quality is limited by {names}; {len(values)} values were measured.")
    worse: list[list[str]] = [
        [
            f"{name} is {value}, and the limit {end}"
            for name, value, end, up in zip(limit.metrics, values, corner, limit.rising, strict=True)
            if not (value <= end if up else end <= value)
        ]
        for corner in limit.corners
    ]
    if not worse:
        raise JudgeError("limits: quality allows no values: the application worked nowhere.")
    if all(worse):
        nearest = min(worse, key=len)
        raise JudgeError(f"limits: quality: {'; '.join(nearest)}.")


def _inside_peak(walk: Walk) -> Bytes:
    change: dict[int, int] = {}
    for block in walk.intervals:
        size = 0 if block.outside else block.size
        change[block.start] = change.get(block.start, 0) + size
        change[block.end] = change.get(block.end, 0) - size
    return max(accumulate(change[tick] for tick in sorted(change)), default=0)


def check_reasons(graph: Graph, plan: Plan, walk: Walk) -> None:
    """Refuse reasons that do not fit what runs; a plan may give none.

    Raises:
        JudgeError: names the storage.
    """
    if not plan.reasons:
        return
    made = sorted(storage.id for storage in graph.storages if not storage.external)
    explained = sorted(reason.storage for reason in plan.reasons)
    if explained != made:
        odd = min(set(explained) ^ set(made), default=-1)
        raise JudgeError(f"reasons: every storage made by an op has one; storage {odd} differs.")
    paged = {transfer.storage for transfer in walk.transfers if transfer.inwards}
    for reason in plan.reasons:
        copies = walk.copies[reason.storage] + walk.values[reason.storage]
        if (reason.decision, reason.copies) != (_decision(reason.storage, walk, paged), copies):
            raise JudgeError(
                f"reasons: storage {reason.storage} is said to be {reason.decision} with "
                f"{reason.copies} copies; the instructions make {copies}."
            )
        if reason.bytes not in (graph.storages[reason.storage].bytes, graph.storages[reason.storage].size):
            raise JudgeError(f"reasons: storage {reason.storage} is said to have {reason.bytes} bytes.")


def _decision(storage: StorageId, walk: Walk, paged: set[StorageId]) -> str:
    if not walk.copies[storage]:
        return "fused"
    if storage in paged:
        return "paged"
    return "kept" if walk.copies[storage] + walk.values[storage] == 1 else "recomputed"
