"""Who runs next: the reference's greedy rules, earliest deadline first, and a plan.

A policy is a function that makes a `Decide`, so that what it remembers belongs to one run.
"""

from collections.abc import Callable, Sequence

from tightrope_fleet.streams.frames import StreamCase
from tightrope_fleet.streams.simulate import Decide, Moment
from tightrope_fleet.values.streams import FrameChoice


def latency_greedy(case: StreamCase) -> Decide:
    """Models by name, the oldest frame of each, on the idle processor that is fastest for it."""
    return _sweep(lambda m, p: case.duration[p][m])


def energy_delay_greedy(case: StreamCase) -> Decide:
    """Like `latency_greedy`, by time times energy."""
    processors, models = case.machine.processors, case.scenario.models
    return _sweep(lambda m, p: case.duration[p][m] * processors[p].costs[models[m].name].mj)


def earliest_deadline(case: StreamCase) -> Decide:
    """The waiting frame that is due first, on the idle processor that is fastest for it."""

    def decide(now: Moment) -> tuple[int, int, int] | None:
        for _, m in sorted((case.deadline[m][queue[0]], m) for m, queue in enumerate(now.queues) if queue):
            if (choice := _fastest(now, m, lambda m, p: case.duration[p][m])) is not None:
                return choice
        return None

    return decide


def follow(choices: Sequence[FrameChoice]) -> Decide:
    """Each processor runs its frames in the order of a plan, and waits for the next one where it has to."""
    lists: dict[int, list[tuple[int, int]]] = {}
    for one in choices:
        if one.processor >= 0:
            lists.setdefault(one.processor, []).append((one.model, one.frame))
    at = dict.fromkeys(lists, 0)

    def decide(now: Moment) -> tuple[int, int, int] | None:
        for p, frames in sorted(lists.items()):
            if now.busy[p] is not None:
                continue
            while at[p] < len(frames) and frames[at[p]] in now.lost:
                at[p] += 1
            if at[p] == len(frames):
                continue
            m, f = frames[at[p]]
            if f in now.queues[m] and now.ready(m, f) and now.room(m) is not None:
                at[p] += 1
                return m, f, p
        return None

    return decide


def skipped(choices: Sequence[FrameChoice]) -> list[tuple[int, int]]:
    """List the frames that a plan drops as soon as they appear."""
    return [(one.model, one.frame) for one in choices if one.processor < 0]


POLICIES: dict[str, Callable[[StreamCase], Decide]] = {
    "latency": latency_greedy,
    "energy-delay": energy_delay_greedy,
    "deadline": earliest_deadline,
}
"""By the name that the command line knows."""


def _sweep(rank: Callable[[int, int], float]) -> Decide:
    """Go through the models by name, again and again while anything starts, as the reference does."""
    time, at, changed = -1.0, 0, False

    def decide(now: Moment) -> tuple[int, int, int] | None:
        nonlocal time, at, changed
        if now.time != time:
            time, at, changed = now.time, 0, False
        order = now.case.name_order
        while True:
            if at == len(order):
                if not changed:
                    return None
                at, changed = 0, False
            m = order[at]
            at += 1
            if (choice := _fastest(now, m, rank)) is not None:
                changed = True
                return choice

    return decide


def _fastest(now: Moment, m: int, rank: Callable[[int, int], float]) -> tuple[int, int, int] | None:
    """Start the oldest frame of a model on the idle processor of the lowest rank, if it can start."""
    idle = [p for p, one in enumerate(now.busy) if one is None]
    if not now.queues[m] or not idle:
        return None
    frame = now.queues[m][0]
    if not now.ready(m, frame) or now.room(m) is None:
        return None
    return m, frame, min(idle, key=lambda p: rank(m, p))
