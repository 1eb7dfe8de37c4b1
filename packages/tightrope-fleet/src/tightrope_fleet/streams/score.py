"""Scores of a run, from 0 to 100.

Per executed frame, `RT` says how well it met its deadline and `EN` how little energy it took:

    RT = 1 / (1 + exp(15 x late in ms))        EN = (1500 mJ - energy) / 1500 mJ

Compatible rules: a model scores `sum(RT EN) / all x (1 - dropped / all)`, over frames that were done or
dropped while requests still came; the scenario is the mean over models that have any. Strict rules: `EN` is
clamped to [0, 1], a dropped frame counts once (as 0 in the mean), every request counts, and each model's
quality is a factor.

Source      Kwon et al., "XRBench", MLSys 2023; the reference program, v0.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tightrope_fleet.values.streams import FrameRun, StreamRun, StreamScenario

RATE_PER_MS = 15.0
MOST_MJ = 1500.0


@dataclass(frozen=True, slots=True)
class ModelScore:
    """How one model did.

    Attributes:
        name: of the model.
        score: of 100.
        realtime: mean `RT` of what was done.
        energy: mean `EN` of what was done.
        experience: share of requests that were not dropped.
        num_done: frames done.
        num_dropped: frames dropped.
        num_open: frames in flight or waiting when the run ended.
    """

    name: str
    score: float
    realtime: float
    energy: float
    experience: float
    num_done: int
    num_dropped: int
    num_open: int


@dataclass(frozen=True, slots=True)
class StreamScore:
    """How a run did: the mean over its models, and each of them."""

    total: float
    models: tuple[ModelScore, ...]


def realtime(late_ns: float) -> float:
    """How well a frame met its deadline: 1 well before, 0.5 at it, 0 well behind.

    >>> realtime(0)
    0.5
    """
    power = RATE_PER_MS * late_ns / 1e6
    return 0.0 if power > 700 else 1.0 / (1.0 + math.exp(power))


def frugality(mj: float, *, clamped: bool) -> float:
    """How little energy a frame took.

    >>> frugality(3000, clamped=False), frugality(3000, clamped=True)
    (-1.0, 0.0)
    """
    share = (MOST_MJ - mj) / MOST_MJ
    return min(1.0, max(0.0, share)) if clamped else share


def score(scenario: StreamScenario, run: StreamRun) -> StreamScore:
    """Score a run by its rules.

    Args:
        scenario: what ran.
        run: every request.

    Returns:
        The mean over models, and each model's figures; 0 for a run without requests.
    """
    compatible = run.rules == "compatible"
    by_model: list[list[FrameRun]] = [[] for _ in scenario.models]
    for frame in run.frames:
        by_model[frame.model].append(frame)
    models = [
        _model_score(model.name, model.quality, frames, compatible)
        for model, frames in zip(scenario.models, by_model, strict=True)
    ]
    counted = [one for one in models if one.num_done + one.num_dropped + (0 if compatible else one.num_open)]
    total = sum(one.score for one in counted) / len(counted) if counted else 0.0
    return StreamScore(total, tuple(models))


def _model_score(name: str, quality: float, frames: Sequence[FrameRun], compatible: bool) -> ModelScore:
    done = [frame for frame in frames if frame.state == "done"]
    num_dropped = sum(frame.state == "dropped" for frame in frames)
    num_open = len(frames) - len(done) - num_dropped
    met = [realtime(frame.end - frame.deadline) for frame in done]
    saved = [frugality(frame.mj, clamped=not compatible) for frame in done]
    earned = sum(a * b for a, b in zip(met, saved, strict=True))
    num_all = len(done) + num_dropped + (0 if compatible else num_open)
    experience = 1 - num_dropped / num_all if num_all else 0.0
    points = earned / num_all * (experience if compatible else quality) if num_all else 0.0
    return ModelScore(
        name=name,
        score=100 * points,
        realtime=sum(met) / len(met) if met else 0.0,
        energy=sum(saved) / len(saved) if saved else 0.0,
        experience=experience,
        num_done=len(done),
        num_dropped=num_dropped,
        num_open=num_open,
    )
