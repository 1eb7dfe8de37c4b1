"""Rounds of federated training on a virtual clock, with or without the training itself.

Idea        Events in whole milliseconds: a task is (device, version, start); it ends with its result or with
            the device's window. Synchronous (FedAvg): some more devices than needed begin, the first results
            make a round. Buffered (FedBuff): so many devices train at any time, and every few results make a
            step, older ones with less weight. Nothing that happens depends on what is learnt, so a run
            without training is the forecast.
Source      FLINT (MLSys 2023); McMahan et al., FedAvg (2017); Nguyen et al., FedBuff (2022), staleness
            1/sqrt(1 + t).
Guarantee   The log is a function of fleet, plan and seed, to the last event. Tasks started = succeeded +
            interrupted + stale + still running.
Complexity  O(tasks log tasks) beside the training.
Gaps        No failures but leaving; one task at a time per device; links are not shared.
"""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tightrope.core.errors import InfeasibleError, TightropeError
from tightrope.core.units import Bytes, shown
from tightrope_fleet.devices.fleet import Devices
from tightrope_shared.draw import WorkEvent, WorkTrace

Step = Callable[[Sequence["DoneTask"], int], None]
"""What a round or a buffer of results does: results, and the version that it makes."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """How rounds are run.

    Attributes:
        mode: ``sync`` or ``async``.
        cohort: results that make a step.
        over: devices begun per result needed, sync.
        concurrency: devices that train at any time, async.
        deadline_s: longest round, sync.
        pause_s: from the end of a round to the next one, sync: other devices have come by then.
        most_stale: versions that a result may be behind, async.
        steps: versions to make.
        size: bytes of the model, each way.
        samples: of one task at most.
        factors: time of a sample under every kind's memory plan over without; 0 = does not fit: never chosen.
        seed: of choices.
    """

    mode: Literal["sync", "async"]
    cohort: int
    steps: int
    size: Bytes
    samples: int
    over: float = 1.3
    concurrency: int = 20
    deadline_s: float = 600.0
    pause_s: float = 0.0
    most_stale: int = 10
    factors: tuple[float, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode not in ("sync", "async"):
            raise TightropeError(f"mode={shown(self.mode)}: give sync or async.")
        for name in ("cohort", "steps", "size", "samples", "concurrency", "deadline_s"):
            if not getattr(self, name) > 0:
                raise TightropeError(f"{name}={shown(getattr(self, name))}: give a number above 0.")
        if self.over < 1 or self.most_stale < 0 or not 0 <= self.pause_s < 1e9:
            raise TightropeError(
                f"over={self.over:g}, most_stale={self.most_stale}, pause_s={self.pause_s:g}: give at least "
                "1, at least 0, and from 0 to below 1e9 seconds."
            )


@dataclass(frozen=True, slots=True)
class DoneTask:
    """A result.

    Attributes:
        device: whose.
        version: that it began from.
        samples: that it saw.
        end: when it came, ms.
    """

    device: int
    version: int
    samples: int
    end: int


@dataclass(slots=True)
class RoundLog:
    """What happened.

    Attributes:
        events: (ms, kind, device, version): ``start``, ``done``, ``left``, ``stale`` and ``step``.
        started: tasks begun.
        succeeded: results that made a step or are in the buffer.
        interrupted: ended by the device's window.
        stale: results that came too late.
        running: tasks under way at the end.
        compute_ms: of devices, interrupted tasks included.
        joules: of the same.
        down: bytes to devices.
        up: bytes of results.
        steps: when every version was made, ms.
    """

    events: list[tuple[int, str, int, int]] = field(default_factory=list)
    started: int = 0
    succeeded: int = 0
    interrupted: int = 0
    stale: int = 0
    running: int = 0
    compute_ms: int = 0
    joules: float = 0.0
    down: Bytes = 0
    up: Bytes = 0
    steps: list[int] = field(default_factory=list)

    @property
    def hash(self) -> str:
        """SHA-256 over all events."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()

    def trace(self, seed: int) -> WorkTrace:
        """The steps as a trace for drawings."""
        begins = [0, *self.steps[:-1]]
        events = tuple(
            WorkEvent(a, b, f"step {n}", "server", "step")
            for n, (a, b) in enumerate(zip(begins, self.steps, strict=True))
        )
        return WorkTrace("simulated", "ms", events, seed)


def run_rounds(
    devices: Devices, samples: Sequence[int], plan: RoundPlan, step: Step | None = None
) -> RoundLog:
    """Run rounds until the steps are made or no device comes back.

    Args:
        devices: the fleet.
        samples: of every device.
        plan: how.
        step: trains on results; None = the clock alone, which is the forecast.

    Raises:
        InfeasibleError: no device can take part.
    """
    clock = _RoundClock(devices, samples, plan, step)
    if not clock.able:
        raise InfeasibleError("no device can take part: no kind has room for the step, or none has samples.")
    return clock.sync() if plan.mode == "sync" else clock.buffered()


@dataclass(slots=True)
class _RoundClock:
    """State of a run."""

    devices: Devices
    samples: Sequence[int]
    plan: RoundPlan
    step: Step | None
    log: RoundLog = field(default_factory=RoundLog)
    queue: list[tuple[int, int, str, DoneTask]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    version: int = 0
    able: list[int] = field(init=False)
    _random: np.random.Generator = field(init=False)
    _serial: int = 0

    def __post_init__(self) -> None:
        factors = self.plan.factors or (1.0,) * len(self.devices.profile.kinds)
        kinds = self.devices.kind
        self.able = [d for d, n in enumerate(self.samples) if n > 0 and factors[kinds[d]] > 0]
        self._random = np.random.default_rng(self.plan.seed)

    def begin(self, now: int, count: int) -> int:
        """Start tasks on devices that are there; return how many."""
        free = [d for d in self.able if d not in self.busy and self.devices.window_end(d, now)]
        if not free:
            return 0
        chosen = self._random.choice(len(free), min(count, len(free)), replace=False)
        for place in chosen:
            self._start(free[int(place)], now)
        return len(chosen)

    def _start(self, device: int, now: int) -> None:
        plan, log, kind = self.plan, self.log, int(self.devices.kind[device])
        samples = min(self.samples[device], plan.samples)
        factor = plan.factors[kind] if plan.factors else 1.0
        fetch, compute, send = self.devices.task_ms(device, samples, plan.size, factor)
        end, last = now + fetch + compute + send, self.devices.window_end(device, now)
        log.started, log.down = log.started + 1, log.down + plan.size
        log.events.append((now, "start", device, self.version))
        done = end <= last
        spent = compute if done else min(max(last - now - fetch, 0), compute)
        log.compute_ms += spent
        log.joules += (
            samples * self.devices.profile.kinds[kind].joules_per_sample * factor * spent / max(compute, 1)
        )
        self._serial += 1
        self.busy.add(device)
        task = DoneTask(device, self.version, samples, min(end, last))
        heapq.heappush(self.queue, (task.end, self._serial, "done" if done else "left", task))

    def _finish(self, kind: str, task: DoneTask) -> None:
        self.busy.discard(task.device)
        self.log.events.append((task.end, kind, task.device, task.version))
        if kind == "left":
            self.log.interrupted += 1
        else:
            self.log.up += self.plan.size

    def _make(self, now: int, results: list[DoneTask]) -> None:
        self.version += 1
        self.log.steps.append(now)
        self.log.events.append((now, "step", -1, self.version))
        if self.step is not None:
            self.step(results, self.version)

    def _later(self, now: int) -> int | None:
        """When a device comes next; None = never."""
        edges = [self.devices.edges[d] for d in self.able]
        coming = [e[::2][np.searchsorted(e[::2], now, side="right") :][:1] for e in edges]
        times = np.concatenate(coming)
        return int(times.min()) if len(times) else None

    def _end_until(self, now: int) -> None:
        """End the tasks of a round that is over."""
        while self.queue and self.queue[0][0] <= now:
            _, _, kind, task = heapq.heappop(self.queue)
            self._finish(kind, task)
            self.log.stale += kind == "done"

    def sync(self) -> RoundLog:
        plan, now = self.plan, 0
        while self.version < plan.steps:
            self.begin(now, int(np.ceil(plan.cohort * plan.over)))
            results: list[DoneTask] = []
            limit = now + int(plan.deadline_s * 1000)
            while len(results) < plan.cohort and self.queue and self.queue[0][0] <= limit:
                now, _, kind, task = heapq.heappop(self.queue)
                self._finish(kind, task)
                if kind == "done" and task.version == self.version:
                    results.append(task)
                elif kind == "done":
                    self.log.stale += 1
            if not results:
                later = self._later(now)
                if later is None:
                    break
                now = max(later, now)
                continue
            if len(results) < plan.cohort:
                now = limit
            self.log.succeeded += len(results)
            self._make(now, results)
            now += int(plan.pause_s * 1000)
            if plan.pause_s:
                self._end_until(now)
        self.log.running = len(self.queue)
        return self.log

    def buffered(self) -> RoundLog:
        plan, now, buffer = self.plan, 0, []
        self.begin(now, plan.concurrency)
        while self.version < plan.steps:
            if not self.queue:
                later = self._later(now)
                if later is None:
                    break
                now = later
                self.begin(now, plan.concurrency)
                continue
            now, _, kind, task = heapq.heappop(self.queue)
            self._finish(kind, task)
            if kind == "done" and self.version - task.version > plan.most_stale:
                self.log.stale += 1
            elif kind == "done":
                self.log.succeeded += 1
                buffer.append(task)
                if len(buffer) >= plan.cohort:
                    self._make(now, buffer)
                    buffer = []
            self.begin(now, plan.concurrency - len(self.queue))
        self.log.running = len(self.queue)
        return self.log
