"""Run a case on a virtual clock: who decides is a parameter, all else is the rules.

Idea        At every instant at which a request may appear or a model is done: see new requests, retire
            what is done, drop what is past its deadline (or what the plan drops), and ask for decisions
            until there is none. A model runs whole, on one processor, without being interrupted. Where the
            machine has an arena, a model starts only when its weights and activations fit beside what runs;
            weights that nothing uses leave it, those of the model that is asked for last first.
Source      Kwon et al., "XRBench", MLSys 2023: the event loop of the reference program (compatible rules).
Guarantee   Deterministic: the same case and decisions give the same run, bit for bit. In strict rules every
            request ends as done or dropped.
Complexity  O(events x (models + processors)) and what the decisions take.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from tightrope.core import Bytes, TightropeError
from tightrope_fleet.streams.frames import StreamCase, single
from tightrope_fleet.values.streams import FrameRun, StreamRun

_TOLERANCE = single(0.01)


@dataclass(slots=True)
class Busy:
    """What a processor runs."""

    model: int
    frame: int
    start: float
    end: float
    page: float


@dataclass(slots=True)
class Moment:
    """The state at one instant, as decisions see it.

    Attributes:
        case: what runs.
        time: in the unit of the case.
        queues: by model, the frames that wait, oldest first.
        busy: by processor.
        num_done: by model, frames that are done.
        done: (model, frame) that are done.
        lost: (model, frame) that were dropped.
        seen: when each frame was seen.
        resident: models whose weights are in the arena.
        peak: largest number of bytes in the arena so far.
    """

    case: StreamCase
    time: float
    queues: list[list[int]]
    busy: list[Busy | None]
    num_done: list[int]
    done: set[tuple[int, int]] = field(default_factory=set)
    lost: set[tuple[int, int]] = field(default_factory=set)
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    resident: set[int] = field(default_factory=set)
    peak: Bytes = 0

    def ready(self, model: int, frame: int) -> bool:
        """Whether what a frame waits for is done."""
        for above, needed in zip(self.case.upstream[model], self.case.needs[model], strict=True):
            if self.case.compatible:
                if self.num_done[above] <= frame:
                    return False
            elif (above, needed[frame]) not in self.done:
                return False
        return True

    def room(self, model: int) -> list[int] | None:
        """Which models' weights have to leave the arena for one to run; None where it has to wait."""
        case, arena = self.case, self.case.machine.arena
        if not arena:
            return []
        models = case.scenario.models
        running = [one.model for one in self.busy if one is not None]
        need = models[model].activations + (0 if model in self.resident else models[model].weights)
        used = sum(models[m].weights for m in self.resident) + sum(models[m].activations for m in running)
        leaving: list[int] = []
        idle = [m for m in self.resident if m != model and m not in running]
        idle.sort(key=lambda m: (-self._next_use(m), m))
        while used + need > arena and idle:
            gone = idle.pop(0)
            used -= models[gone].weights
            leaving.append(gone)
        return leaving if used + need <= arena else None

    def _next_use(self, model: int) -> float:
        """When a model is asked for next."""
        if self.queues[model]:
            return self.time
        return next((at for at in self.case.release[model] if at > self.time), float("inf"))

    def note_peak(self) -> None:
        """Count the bytes in the arena, where there is one."""
        if not self.case.machine.arena:
            return
        models = self.case.scenario.models
        used = sum(models[m].weights for m in self.resident)
        used += sum(models[one.model].activations for one in self.busy if one is not None)
        self.peak = max(self.peak, used)


Decide: TypeAlias = Callable[[Moment], tuple[int, int, int] | None]
"""Name (model, frame, processor) to start now, or None; asked again until it says None."""
Measure: TypeAlias = Callable[[int, int, int], float]
"""How long (model, frame, processor) takes, in the unit of the case: a table, or a measurement."""


def simulate(
    case: StreamCase,
    decide: Decide,
    *,
    skip: Collection[tuple[int, int]] = (),
    measure: Measure | None = None,
    drained: bool = True,
) -> StreamRun:
    """Run a case.

    Args:
        case: see `expand`.
        decide: see `Decide`.
        skip: frames that are dropped as soon as they appear.
        measure: how long frames take; None = as the machine says.
        drained: in strict rules, go on until every request is done or dropped; else stop at the horizon, with
            requests in flight or waiting.

    Returns:
        Every request that appeared.

    Raises:
        TightropeError: a decision that cannot be, such as a busy processor.
    """
    num_models = len(case.scenario.models)
    now = Moment(
        case,
        0.0,
        [[] for _ in range(num_models)],
        [None] * len(case.machine.processors),
        [0] * num_models,
    )
    log: list[FrameRun] = []
    dropped = set(skip)
    following = [0] * num_models
    tick = 0
    while True:
        _see(now, following)
        _retire(now, log)
        _drop(now, dropped, log)
        while (choice := decide(now)) is not None:
            _start(now, choice, measure)
        pending = any(following[m] < len(case.release[m]) for m in range(num_models))
        if case.compatible and not pending:
            break
        while tick < len(case.ticks) and case.ticks[tick] <= now.time:
            tick += 1
        upcoming = [one.end for one in now.busy if one is not None] + list(case.ticks[tick : tick + 1])
        if not upcoming:
            if not any(now.queues):
                break
            upcoming = [min(case.deadline[m][f] + 1 for m, queue in enumerate(now.queues) for f in queue)]
        now.time = min(upcoming)
        if not drained and now.time >= case.horizon:
            break
    log += _unfinished(now)
    return StreamRun(tuple(log), now.peak, case.rules, case.horizon, case.seed)


def _see(now: Moment, following: list[int]) -> None:
    """Put what has appeared into the queues; the reference takes one frame of a model at a time."""
    case = now.case
    for m, releases in enumerate(case.release):
        while following[m] < len(releases) and releases[following[m]] <= now.time:
            frame = following[m]
            following[m] += 1
            if case.wanted[m][frame]:
                now.queues[m].append(frame)
                now.seen[m, frame] = now.time
            if case.compatible:
                break


def _retire(now: Moment, log: list[FrameRun]) -> None:
    case = now.case
    limit = single(now.time + _TOLERANCE) if case.compatible else now.time
    for p, one in enumerate(now.busy):
        if one is not None and limit >= one.end:
            log.append(_frame_run(now, "done", one.model, one.frame, p, one))
            now.num_done[one.model] += 1
            now.done.add((one.model, one.frame))
            now.busy[p] = None


def _drop(now: Moment, skip: set[tuple[int, int]], log: list[FrameRun]) -> None:
    """Drop what is past its deadline, what the plan drops and, in strict rules, what waits for that."""
    case = now.case
    changed = True
    while changed:
        changed = False
        for m in case.name_order:
            kept = [f for f in now.queues[m] if not _is_lost(now, m, f, skip)]
            if len(kept) == len(now.queues[m]):
                continue
            for f in now.queues[m]:
                if f not in kept:
                    log.append(_frame_run(now, "dropped", m, f, -1, None))
                    now.lost.add((m, f))
            now.queues[m] = kept
            changed = True


def _is_lost(now: Moment, m: int, f: int, skip: set[tuple[int, int]]) -> bool:
    if now.case.deadline[m][f] < now.time or (m, f) in skip:
        return True
    if now.case.compatible:
        return False
    above = zip(now.case.upstream[m], now.case.needs[m], strict=True)
    return any((u, needed[f]) in now.lost for u, needed in above)


def _start(now: Moment, choice: tuple[int, int, int], measure: Measure | None) -> None:
    m, f, p = choice
    leaving = now.room(m)
    if now.busy[p] is not None or f not in now.queues[m] or not now.ready(m, f) or leaving is None:
        name = now.case.scenario.models[m].name
        raise TightropeError(
            f"frame {f} of {name!r} cannot start on processor {p} at {now.time:g}. A frame must be "
            "waiting and ready, its processor idle, and the arena must have room."
        )
    case = now.case
    now.resident.difference_update(leaving)
    page = case.page[m] if case.machine.arena and m not in now.resident else 0.0
    if case.machine.arena:
        now.resident.add(m)
    time = page + (case.duration[p][m] if measure is None else measure(m, f, p))
    end = single(now.time + time) if case.compatible else now.time + time
    now.busy[p] = Busy(m, f, now.time, end, page)
    now.queues[m].remove(f)
    now.note_peak()


def _frame_run(now: Moment, state: str, m: int, f: int, p: int, one: Busy | None) -> FrameRun:
    case = now.case
    start, end = (now.time, now.time) if one is None else (one.start, one.end)
    cost = case.machine.processors[p].costs[case.scenario.models[m].name].mj if one is not None else 0.0
    return FrameRun(
        model=m,
        frame=f,
        state=state,  # type: ignore[arg-type]
        processor=p,
        released=case.ns(now.seen[m, f]),
        start=case.ns(start),
        end=case.ns(end),
        deadline=case.ns(case.deadline[m][f]),
        mj=cost,
        page_ns=0 if one is None else case.ns(one.page),
    )


def _unfinished(now: Moment) -> list[FrameRun]:
    running = [
        _frame_run(now, "in_flight", one.model, one.frame, p, one)
        for p, one in enumerate(now.busy)
        if one is not None
    ]
    waiting = [
        _frame_run(now, "waiting", m, f, -1, None) for m, queue in enumerate(now.queues) for f in queue
    ]
    return running + waiting
