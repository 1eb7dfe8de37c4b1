"""The requests of a scenario: when each appears, is due, and what it waits for.

Two sets of rules. *Compatible* ones are those of the XRBench reference program (v0.1): periods and ticks
cut to whole milliseconds, requests seen at the next tick or completion only, times in single precision,
and a dependency that counts completed frames. *Strict* ones have none of these defects: exact periods,
requests seen when they appear, dependencies by frame, every request accounted for.
"""

import random
import struct
from dataclasses import dataclass
from fractions import Fraction

from tightrope.core import Nanoseconds, TightropeError
from tightrope_fleet.values.streams import MOST_FRAMES, Rules, StreamMachine, StreamScenario, check_streams

MS = 1_000_000
HORIZON: Nanoseconds = 700 * MS
"""The reference runs for 700 ms."""


def single(value: float) -> float:
    """Round to single precision, as the reference keeps times.

    >>> single(0.1)
    0.10000000149011612
    """
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class StreamCase:
    """A scenario on a machine under rules, expanded into requests.

    Times are those of the simulation: milliseconds in compatible rules, else nanoseconds.

    Attributes:
        scenario: what runs.
        machine: where.
        rules: see above.
        horizon: requests that appear before this belong to it.
        seed: of which frames are asked for.
        release: by model, when each frame appears.
        deadline: by model, when each frame is due.
        wanted: by model, whether each frame is asked for at all.
        upstream: by model, the models that it waits for.
        needs: by model and upstream model, which frame of it each frame waits for.
        ticks: instants at which something may appear, ascending.
        duration: by processor and model, time of one frame.
        page: by model, time in which its weights come in.
        name_order: models by name, as the reference goes through them.
    """

    scenario: StreamScenario
    machine: StreamMachine
    rules: Rules
    horizon: Nanoseconds
    seed: int
    release: tuple[tuple[float, ...], ...]
    deadline: tuple[tuple[float, ...], ...]
    wanted: tuple[tuple[bool, ...], ...]
    upstream: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[tuple[int, ...], ...], ...]
    ticks: tuple[float, ...]
    duration: tuple[tuple[float, ...], ...]
    page: tuple[float, ...]
    name_order: tuple[int, ...]

    @property
    def compatible(self) -> bool:
        """Whether the reference's rules hold."""
        return self.rules == "compatible"

    @property
    def num_requests(self) -> int:
        """Frames that are asked for."""
        return sum(map(sum, self.wanted))

    def ns(self, time: float) -> Nanoseconds:
        """Turn a time of the simulation into nanoseconds."""
        return round(time * MS) if self.compatible else round(time)


def expand(
    scenario: StreamScenario,
    machine: StreamMachine,
    *,
    rules: Rules = "strict",
    horizon: Nanoseconds = HORIZON,
    seed: int = 0,
) -> StreamCase:
    """List the requests of a scenario on a machine.

    Args:
        scenario: models, frame rates, dependencies, probabilities.
        machine: processors and what each model costs there.
        rules: ``compatible`` or ``strict``.
        horizon: requests that appear before this belong to the run, nanoseconds.
        seed: of which frames are asked for, where a probability is below 1.

    Raises:
        TightropeError: the scenario or machine cannot be, or there would be too many requests.

    Example:
        >>> from tightrope_fleet.values.streams import ModelCost, StreamModel, StreamProcessor
        >>> scenario = StreamScenario("s", (StreamModel("a", 100),))
        >>> machine = StreamMachine("m", (StreamProcessor("p", {"a": ModelCost(10)}),))
        >>> expand(scenario, machine, horizon=30 * MS).release
        ((0, 10000000, 20000000),)
    """
    check_streams(scenario, machine)
    if horizon <= 0 or sum(horizon * model.fps / 1e9 for model in scenario.models) > MOST_FRAMES:
        raise TightropeError(f"horizon={horizon} ns: give a time above 0, with at most {MOST_FRAMES} frames.")
    compatible = rules == "compatible"
    if compatible and machine.arena:
        raise TightropeError(
            f"machine {machine.name!r:.60} has an arena of {machine.arena} bytes, which compatible rules "
            "do not support. Take strict rules, or leave the arena out."
        )
    spans = [_spans(model.fps, horizon, compatible) for model in scenario.models]
    names = [model.name for model in scenario.models]
    upstream = tuple(tuple(names.index(other) for other in model.after) for model in scenario.models)
    release = tuple(tuple(start for start, _ in span) for span in spans)
    needs = tuple(
        tuple(_needed(release[m], release[u], compatible) for u in above) for m, above in enumerate(upstream)
    )
    wanted = _draw(scenario, upstream, needs, [len(span) for span in spans], seed, compatible=compatible)
    if compatible:
        tick = 1000 // int(max(model.fps for model in scenario.models))
        last = max(span[-1][1] for span in spans if span)
        ticks = tuple(float(at) for at in range(0, int(last) + 2 * tick, tick))
        duration = tuple(
            tuple(single(single(processor.costs[name].ns) / MS) for name in names)
            for processor in machine.processors
        )
    else:
        ticks = tuple(sorted({start for span in spans for start, _ in span}))
        duration = tuple(
            tuple(processor.costs[name].ns for name in names) for processor in machine.processors
        )
    scale = 1e3 if compatible else 1e9
    return StreamCase(
        scenario=scenario,
        machine=machine,
        rules=rules,
        horizon=horizon,
        seed=seed,
        release=release,
        deadline=tuple(tuple(end for _, end in span) for span in spans),
        wanted=wanted,
        upstream=upstream,
        needs=needs,
        ticks=ticks,
        duration=duration,
        page=tuple(
            float(-(-scale * model.weights // machine.page_rate)) if machine.arena else 0.0
            for model in scenario.models
        ),
        name_order=tuple(sorted(range(len(names)), key=names.__getitem__)),
    )


def _spans(fps: float, horizon: Nanoseconds, compatible: bool) -> list[tuple[float, float]]:
    """Release and deadline of every frame."""
    if compatible:
        if int(fps) < 1 or 1000 // int(fps) < 1:
            raise TightropeError(f"fps={fps}: compatible rules know 1 to 1000 whole frames per second.")
        period = 1000 // int(fps)
        return [(float(k * period), float((k + 1) * period)) for k in range(horizon // MS // period)]
    exact = Fraction(10**9) / Fraction(fps).limit_denominator(10**6)
    spans: list[tuple[float, float]] = []
    while (start := int(len(spans) * exact)) < horizon:
        spans.append((start, int((len(spans) + 1) * exact)))
    return spans


def _needed(mine: tuple[float, ...], theirs: tuple[float, ...], compatible: bool) -> tuple[int, ...]:
    """Which frame of another model each frame waits for: the newest that was there when it appeared."""
    if compatible:
        return tuple(range(len(mine)))
    found: list[int] = []
    newest = 0
    for start in mine:
        while newest + 1 < len(theirs) and theirs[newest + 1] <= start:
            newest += 1
        found.append(newest)
    return tuple(found)


def _draw(
    scenario: StreamScenario,
    upstream: tuple[tuple[int, ...], ...],
    needs: tuple[tuple[tuple[int, ...], ...], ...],
    counts: list[int],
    seed: int,
    *,
    compatible: bool,
) -> tuple[tuple[bool, ...], ...]:
    """Draw which frames are asked for; each model has random numbers of its own."""
    drawn: dict[int, tuple[bool, ...]] = {}
    waiting = list(range(len(counts)))
    while waiting:
        m = next(m for m in waiting if all(u in drawn for u in upstream[m]))
        waiting.remove(m)
        generator = random.Random(f"{seed}:{scenario.models[m].name}")
        chance = scenario.models[m].probability
        asked = [generator.random() < chance for _ in range(counts[m])]
        if not compatible:
            for u, frames in zip(upstream[m], needs[m], strict=True):
                asked = [one and drawn[u][frames[k]] for k, one in enumerate(asked)]
        drawn[m] = tuple(asked)
    return tuple(drawn[m] for m in range(len(counts)))
