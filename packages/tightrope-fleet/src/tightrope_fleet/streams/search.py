"""Plan which processor runs which frame, in which order, and which frames are dropped.

Idea        A plan is a processor (or none) and a rank per frame. Whatever these say, the simulation makes a
            schedule of it, so every plan is valid, waiting for a frame included. Start from what the greedy
            policies do, and anneal: move, swap, drop or take up single frames and runs of frames. Each new
            plan is simulated whole, in about 10 us, and ranks become the starts that came out.
Source      Simulated annealing over a list scheduler; the policies are those of XRBench's reference (MLSys
            2023) and earliest deadline first.
Guarantee   The score is that of a full simulation, never below that of any policy, and the same for the same
            seed and number of moves. How far it may be from the best: the bound.
Complexity  One simulation per move: O(events x (models + processors)).
Gaps        The plan is for one seed of a scenario with probabilities; durations are taken as exact.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tightrope.core import TightropeError
from tightrope.core.arguments import check_count, check_seconds
from tightrope_fleet.streams.bound import bound_at, prices_of
from tightrope_fleet.streams.frames import StreamCase
from tightrope_fleet.streams.policies import POLICIES, follow, skipped
from tightrope_fleet.streams.score import score
from tightrope_fleet.streams.scorer import Genes, Scorer, choices_of, first_frames, genes_of, scorer_of
from tightrope_fleet.streams.simulate import simulate
from tightrope_fleet.values.streams import StreamPlan, StreamRun


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a plan is searched.

    Attributes:
        moves: plans that are tried; the effort, so that a run repeats bit for bit on any machine.
        seconds: limit on CPU time; where it ends the search early, another run may end elsewhere.
        seed: of the moves.
        native: simulate in C++ where there is a compiler.
        hot: temperature at the start, points of score.
        cold: temperature at the end.
        look_ahead: search at all; without, the best policy is the plan.
    """

    moves: int = 100_000
    seconds: float = 60.0
    seed: int = 0
    native: bool = True
    hot: float = 0.6
    cold: float = 0.01
    look_ahead: bool = True


def plan_streams(
    case: StreamCase,
    *,
    options: StreamOptions | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> StreamPlan:
    """Plan a case.

    Args:
        case: see `tightrope_fleet.streams.expand`.
        options: effort, seed, techniques to switch off.
        progress: told the share of the effort and the best score now and then.

    Returns:
        The plan with its score, the peak of the arena and a bound that no plan exceeds.

    Raises:
        TightropeError: an option is out of range.

    Example:
        >>> from tightrope_fleet.streams import expand, xrbench
        >>> case = expand(xrbench().scenario("VR_gaming"), xrbench().machine("Single_8K-WS"))
        >>> plan = plan_streams(case, options=StreamOptions(moves=10))
        >>> plan.score <= plan.upper_bound
        True
    """
    options = options or StreamOptions()
    check_count("moves", options.moves)
    check_count("seed", options.seed)
    check_seconds("seconds", options.seconds)
    if not 0 < options.cold <= options.hot:
        raise TightropeError(f"hot={options.hot}, cold={options.cold}: give 0 < cold <= hot.")
    runs = {name: simulate(case, policy(case)) for name, policy in POLICIES.items()}
    scorer = scorer_of(case, native=options.native and options.look_ahead)
    starts = {name: genes_of(case, run) for name, run in runs.items()}
    values = {name: scorer.score(genes.processors, genes.ranks)[0] for name, genes in starts.items()}
    best = max(values, key=lambda name: values[name])
    genes, planner = starts[best], best
    if options.look_ahead and options.moves:
        genes = _Annealing(case, scorer, options).run(genes, progress)
        planner = "search"
    choices = choices_of(case, genes)
    run = simulate(case, follow(choices), skip=skipped(choices))
    prices = prices_of(case)
    return StreamPlan(
        scenario=case.scenario.name,
        machine=case.machine.name,
        rules=case.rules,
        horizon=case.horizon,
        seed=case.seed,
        choices=choices,
        score=score(case.scenario, run).total,
        upper_bound=bound_at(case, prices),
        prices=prices,
        peak=run.peak,
        planner=planner,
    )


def run_plan(case: StreamCase, plan: StreamPlan) -> StreamRun:
    """Simulate a plan.

    Raises:
        TightropeError: it was made for another case.
    """
    mine = (case.scenario.name, case.machine.name, case.rules, case.horizon, case.seed)
    theirs = (plan.scenario, plan.machine, plan.rules, plan.horizon, plan.seed)
    if mine != theirs:
        raise TightropeError(f"the plan was made for {theirs}, this is {mine}: plan this case.")
    return simulate(case, follow(plan.choices), skip=skipped(plan.choices))


class _Annealing:
    """The moves, and which of them are kept."""

    def __init__(self, case: StreamCase, scorer: Scorer, options: StreamOptions) -> None:
        self.scorer, self.options = scorer, options
        self.random = random.Random(options.seed)
        self.first = first_frames(case)
        self.num_processors = len(case.machine.processors)
        self.release = [at for row in case.release for at in row]
        self.span = [
            e - r for a, b in zip(case.release, case.deadline, strict=True) for r, e in zip(a, b, strict=True)
        ]
        self.owner = [m for m in range(len(self.first) - 1) for _ in range(self.first[m], self.first[m + 1])]
        self.duration = case.duration

    def run(self, genes: Genes, progress: Callable[[float, float], None] | None) -> Genes:
        """Anneal from a plan; return the best one seen."""
        options, until = self.options, time.process_time() + self.options.seconds
        value = best = self.scorer.score(genes.processors, genes.ranks)[0]
        kept = genes
        temperature = options.hot
        for move in range(options.moves):
            if move % 256 == 0:
                share = move / options.moves
                temperature = options.hot * (options.cold / options.hot) ** share
                if time.process_time() > until:
                    break
                if progress is not None and move % 8192 == 0:
                    progress(share, best)
            other = genes.copy()
            self.change(other)
            found, _, starts = self.scorer.score(other.processors, other.ranks)
            if found < value and self.random.random() >= math.exp((found - value) / temperature):
                continue
            np.copyto(other.ranks, starts, where=starts >= 0)
            genes, value = other, found
            if value > best + 1e-12:
                best, kept = value, genes
        return kept

    def change(self, genes: Genes) -> None:
        """Make one move on a plan."""
        draw = self.random.random
        kind, at = draw(), int(draw() * len(self.owner))
        if kind < 0.25:
            genes.processors[at] = -1
        elif kind < 0.60:
            self.put(genes, at, int(draw() * self.num_processors), 0.95 * draw())
        elif kind < 0.75:
            self.swap(genes, at, int(draw() * len(self.owner)))
        elif kind < 0.85:
            until = min(at + 1 + int(draw() * 6), self.first[self.owner[at] + 1])
            processor, when = int(draw() * (self.num_processors + 1)) - 1, 0.9 * draw()
            for one in range(at, until):
                self.put(genes, one, processor, when)
        elif kind < 0.93:
            self.shift(genes, at, 1 if draw() < 0.5 else -1)
        else:
            self.give_way(genes, at, int(draw() * self.num_processors))

    def put(self, genes: Genes, at: int, processor: int, when: float) -> None:
        """Run a frame on a processor, about ``when`` of its period after it appears."""
        genes.processors[at] = processor
        genes.ranks[at] = self.release[at] + self.span[at] * when

    def swap(self, genes: Genes, one: int, other: int) -> None:
        """Let two frames change places."""
        for array in (genes.processors, genes.ranks):
            array[one], array[other] = array[other], array[one]

    def shift(self, genes: Genes, at: int, step: int) -> None:
        """Drop a frame, and run the one beside it instead."""
        m, other = self.owner[at], at + step
        if self.first[m] <= other < self.first[m + 1]:
            was = int(genes.processors[at])
            self.put(genes, other, was if was >= 0 else 0, 0.9 * self.random.random())
            genes.processors[at] = -1

    def give_way(self, genes: Genes, at: int, processor: int) -> None:
        """Run a frame, and drop or put behind it what is in its way."""
        self.put(genes, at, processor, 0.6 * self.random.random())
        start = genes.ranks[at]
        end = start + self.duration[processor][self.owner[at]]
        for other in np.flatnonzero((genes.processors == processor) & (genes.ranks < end)):
            before = start - 0.8 * self.duration[processor][self.owner[other]]
            if other != at and genes.ranks[other] > before:
                if self.random.random() < 0.7:
                    genes.processors[other] = -1
                else:
                    genes.ranks[other] = end
