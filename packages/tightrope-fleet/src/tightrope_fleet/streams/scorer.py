"""Score many plans of one case quickly: in C++ where there is a compiler, else by simulating in Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tightrope_fleet.streams.frames import MS, StreamCase
from tightrope_fleet.streams.native import StreamScorer, available
from tightrope_fleet.streams.policies import follow, skipped
from tightrope_fleet.streams.score import frugality, score
from tightrope_fleet.streams.simulate import simulate
from tightrope_fleet.values.streams import FrameChoice, StreamRun


@dataclass(frozen=True, slots=True)
class Genes:
    """A plan as arrays over all frames, model by model.

    Attributes:
        processors: -1 = dropped as soon as it appears.
        ranks: order on its processor; any numbers.
    """

    processors: NDArray[np.int64]
    ranks: NDArray[np.float64]

    def copy(self) -> "Genes":
        """Copy both arrays."""
        return Genes(self.processors.copy(), self.ranks.copy())


class Scorer(Protocol):
    """What scores plans of one case."""

    def score(
        self, processors: NDArray[np.int64], ranks: NDArray[np.float64]
    ) -> tuple[float, int, NDArray[np.float64]]:
        """Give the score, the peak of the arena, and by frame when it started (-1 = never)."""


def first_frames(case: StreamCase) -> list[int]:
    """Where the frames of each model begin among all, and the number of all."""
    return list(accumulate(map(len, case.release), initial=0))


def scorer_of(case: StreamCase, *, native: bool = True) -> Scorer:
    """Make a scorer; ``native`` False = the one in Python, which gives the same figures."""
    if not (native and available()):
        return _PythonScorer(case)
    models = case.scenario.models
    counts = [len(releases) for releases in case.release]
    shape = [len(models), len(case.machine.processors), int(case.compatible), len(case.ticks)]
    shape += [case.machine.arena, *counts, *case.name_order, *(int(w) for row in case.wanted for w in row)]
    for above, needs in zip(case.upstream, case.needs, strict=True):
        shape.append(len(above))
        for u, frames in zip(above, needs, strict=True):
            shape += [u, *frames]
    values = [at for row in (*case.release, *case.deadline, case.ticks, *case.duration) for at in row]
    values += [
        frugality(processor.costs[model.name].mj, clamped=not case.compatible)
        for processor in case.machine.processors
        for model in models
    ]
    values += [*case.page, *(model.quality for model in models)]
    values += [model.weights for model in models] + [model.activations for model in models]
    return StreamScorer(shape, values, sum(counts))


class _PythonScorer:
    """The same by `simulate`, a hundred times slower."""

    def __init__(self, case: StreamCase) -> None:
        self._case, self._first = case, first_frames(case)

    def score(
        self, processors: NDArray[np.int64], ranks: NDArray[np.float64]
    ) -> tuple[float, int, NDArray[np.float64]]:
        case = self._case
        choices = choices_of(case, Genes(processors, ranks), every=True)
        run = simulate(case, follow(choices), skip=skipped(choices))
        starts = np.full(self._first[-1], -1.0)
        for frame in run.frames:
            if frame.processor >= 0:
                scale = MS if case.compatible else 1
                starts[self._first[frame.model] + frame.frame] = frame.start / scale
        return score(case.scenario, run).total, run.peak, starts


def genes_of(case: StreamCase, run: StreamRun) -> Genes:
    """Read the plan that a run amounts to; what it left open is put behind all else."""
    first = first_frames(case)
    processors = np.zeros(first[-1], dtype=np.int64)
    ranks = np.full(first[-1], 1e18)
    for m in range(len(case.scenario.models)):
        fastest = min(range(len(case.machine.processors)), key=lambda p: case.duration[p][m])
        processors[first[m] : first[m + 1]] = fastest
    for frame in run.frames:
        if frame.state != "waiting":
            at = first[frame.model] + frame.frame
            processors[at] = frame.processor
            ranks[at] = frame.start / (MS if case.compatible else 1)
    return Genes(processors, ranks)


def choices_of(case: StreamCase, genes: Genes, *, every: bool = False) -> tuple[FrameChoice, ...]:
    """Write a plan as its decisions, by rank; frames that nobody asks for are left out unless ``every``."""
    first = first_frames(case)
    owners = [(m, f) for m in range(len(first) - 1) for f in range(first[m + 1] - first[m])]
    order = sorted(range(first[-1]), key=lambda at: (genes.ranks[at], at))
    return tuple(
        FrameChoice(*owners[at], int(genes.processors[at]))
        for at in order
        if every or case.wanted[owners[at][0]][owners[at][1]]
    )


def genes_from(case: StreamCase, choices: Sequence[FrameChoice]) -> Genes:
    """Read a plan from its decisions."""
    first = first_frames(case)
    processors = np.full(first[-1], -1, dtype=np.int64)
    ranks = np.full(first[-1], 1e18)
    for rank, one in enumerate(choices):
        processors[first[one.model] + one.frame] = one.processor
        ranks[first[one.model] + one.frame] = rank
    return Genes(processors, ranks)
