"""Streams with deadlines: models that have to answer frame after frame, processors, plans, and what happened.

    period ->|    |    |    |        request f of a model appears at its release and is due one period later
    ES       [==]  [==]  x           done, done, dropped
    GE          [===] [===]          after ES: starts when the same frame of ES is done
             +----+----+----+-> ns

All times are integer nanoseconds, half-open.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from tightrope.core.errors import TightropeError
from tightrope.core.units import Bytes, Nanoseconds, shown

MOST_MODELS = 64
MOST_PROCESSORS = 64
MOST_FRAMES = 100_000


class StreamModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that answers frames.

    Attributes:
        name: unique in its scenario.
        fps: frames per second.
        after: models whose answer to the same frame it needs.
        probability: of each frame being asked for, given that the frames that it needs are.
        quality: factor of its score, such as the share of a quality target that is reached.
        weights: bytes that have to be in the arena while it runs, and may stay there.
        activations: bytes that it takes beside them while it runs.
    """

    name: str
    fps: float
    after: tuple[str, ...] = ()
    probability: float = 1.0
    quality: float = 1.0
    weights: Bytes = 0
    activations: Bytes = 0


class StreamScenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models that run together."""

    name: str
    models: tuple[StreamModel, ...]


class ModelCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one frame of a model takes on one processor.

    Attributes:
        ns: time.
        mj: energy, millijoules.
    """

    ns: Nanoseconds
    mj: float = 0.0


class StreamProcessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A processor that runs one model at a time, whole.

    Attributes:
        name: unique on its machine.
        costs: by model.
    """

    name: str
    costs: dict[str, ModelCost]


class StreamMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processors that share one arena.

    Attributes:
        name: for people.
        processors: in order.
        arena: bytes that weights and activations share; 0 = no limit.
        page_rate: bytes per second with which weights come into the arena.
    """

    name: str
    processors: tuple[StreamProcessor, ...]
    arena: Bytes = 0
    page_rate: float = 1e9


Rules = Literal["compatible", "strict"]


class FrameRun(msgspec.Struct, frozen=True, gc=False):
    """What became of one request.

    Attributes:
        model: position in the scenario.
        frame: number, from 0.
        state: ``done``; ``dropped``; ``in_flight`` when the run ended first, and ``waiting`` likewise.
        processor: position on the machine, -1 where it never started.
        released: when it was seen.
        start: when it started; of a dropped one, when it was dropped.
        end: when it was done; of a dropped one, when it was dropped.
        deadline: when it was due.
        mj: energy.
        page_ns: part of its time in which weights came in.
    """

    model: int
    frame: int
    state: Literal["done", "dropped", "in_flight", "waiting"]
    processor: int
    released: Nanoseconds
    start: Nanoseconds
    end: Nanoseconds
    deadline: Nanoseconds
    mj: float = 0.0
    page_ns: Nanoseconds = 0


class StreamRun(msgspec.Struct, frozen=True):
    """Every request of a run, in the order in which they were done with.

    Attributes:
        frames: see `FrameRun`.
        peak: largest number of bytes in the arena; 0 where the machine has none.
        rules: which rules of time, dependency and score hold.
        horizon: requests that appear before this belong to the run.
        seed: of which frames are asked for.
    """

    frames: tuple[FrameRun, ...]
    peak: Bytes
    rules: Rules
    horizon: Nanoseconds
    seed: int = 0


class FrameChoice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One decision of a plan: this frame on this processor, or on none (-1: dropped)."""

    model: int
    frame: int
    processor: int


class StreamPlan(msgspec.Struct, frozen=True):
    """What every processor runs, in order, and what is dropped.

    Attributes:
        scenario: name.
        machine: name.
        rules: see `StreamRun`.
        horizon: likewise.
        seed: likewise.
        choices: every frame that is asked for once; the order is that of each processor.
        score: forecast, of 100.
        upper_bound: no plan scores more (see `tightrope_fleet.judge.streams`).
        prices: per processor, score per nanosecond: what the bound is derived from.
        peak: forecast of the bytes in the arena.
        planner: what found it.
    """

    scenario: str
    machine: str
    rules: Rules
    horizon: Nanoseconds
    seed: int
    choices: tuple[FrameChoice, ...]
    score: float
    upper_bound: float
    prices: tuple[float, ...] = ()
    peak: Bytes = 0
    planner: str = "search"


def check_streams(scenario: StreamScenario, machine: StreamMachine | None = None) -> None:
    """Refuse scenarios and machines that cannot be.

    Raises:
        TightropeError: names the model or processor, and quotes the value.
    """
    names = [model.name for model in scenario.models]
    if not 1 <= len(names) <= MOST_MODELS or len(set(names)) != len(names):
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        why = f"{twice!r} is there twice" if twice else f"there are {len(names)}"
        raise TightropeError(
            f"scenario {scenario.name!r:.60}: 1 to {MOST_MODELS} models with names of their own; {why}."
        )
    for model in scenario.models:
        _check_model(scenario, model, names)
    cycle = _cycle({model.name: model.after for model in scenario.models})
    if cycle:
        raise TightropeError(
            f"scenario {scenario.name!r:.60}: {' -> '.join(cycle)} is a cycle: no frame of it could ever "
            "start. "
            "Take one of them out of the other's after."
        )
    if machine is not None:
        _check_machine(scenario, machine)


def _check_model(scenario: StreamScenario, model: StreamModel, names: Sequence[str]) -> None:
    where = f"scenario {scenario.name!r:.60}, model {model.name!r:.60}"
    if not 0.001 <= model.fps <= 100_000:
        raise TightropeError(f"{where}: fps={shown(model.fps)}: give frames per second, 0.001 to 100000.")
    for name, value in (("probability", model.probability), ("quality", model.quality)):
        if not 0 <= value <= 1:
            raise TightropeError(f"{where}: {name}={shown(value)}: give a number from 0 to 1.")
    for name, size in (("weights", model.weights), ("activations", model.activations)):
        if not 0 <= size <= 2**60:
            raise TightropeError(f"{where}: {name}={shown(size)}: give bytes, at least 0.")
    for other in model.after:
        if other not in names:
            raise TightropeError(
                f"{where}: after={other!r:.60}: no model is called that; there are: {', '.join(names)}."
            )


def _check_machine(scenario: StreamScenario, machine: StreamMachine) -> None:
    where = f"machine {machine.name!r:.60}"
    if not 1 <= len(machine.processors) <= MOST_PROCESSORS:
        raise TightropeError(f"{where}: {len(machine.processors)} processors: give 1 to {MOST_PROCESSORS}.")
    if not 0 <= machine.arena <= 2**60:
        raise TightropeError(f"{where}: arena={shown(machine.arena)}: give bytes, or 0 for no limit.")
    if not 0 < machine.page_rate < math.inf:
        raise TightropeError(
            f"{where}: page_rate={shown(machine.page_rate)}: give bytes per second, above 0."
        )
    for processor in machine.processors:
        for model in scenario.models:
            cost = processor.costs.get(model.name)
            if cost is None:
                raise TightropeError(
                    f"{where}, processor {processor.name!r:.60}: no cost of model {model.name!r:.60}; "
                    f"give costs.{model.name} = {{ ns = ..., mj = ... }}."
                )
            if not 0 < cost.ns <= 2**53 or not 0 <= cost.mj < math.inf:
                raise TightropeError(
                    f"{where}, processor {processor.name!r:.60}, model {model.name!r:.60}: "
                    f"ns={shown(cost.ns)}, "
                    f"mj={shown(cost.mj)}: give a time above 0 and an energy of at least 0."
                )
    if machine.arena:
        for model in scenario.models:
            if model.weights + model.activations > machine.arena:
                raise TightropeError(
                    f"{where}: model {model.name!r:.60} needs {model.weights + model.activations} bytes, "
                    f"and the arena has {machine.arena}. Give a larger arena, or plan the model "
                    "into fewer bytes."
                )


def _cycle(after: dict[str, tuple[str, ...]]) -> list[str]:
    """Find models that wait for each other; empty where there are none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in after[name]:
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    for name in after:
        if found := visit(name, []):
            return found
    return []
