"""The planner of pipelines: least time of a step under bytes per rank.

Idea        Try placements (how many stages per rank, looped or folded), orders (published ones, list
            scheduling under many rules), how early receives are posted, how many gathered stages there is
            room for, and which stages are computed again, from none to all; keep the fastest that fits every
            rank. Then let neighbours in a rank's order change places while that is faster.
Source      Breadth-first (Lamy-Poirier 2023), zero bubble (Qi et al. 2024); see `generate` and `listing`.
Guarantee   What is returned fits, was simulated message by message, and is at most `JointPlan.ns_bound`
            away from the best; never slower than the published orders that fit, nor than torch's own
            schedules up to `starts.MOST` computations. A larger budget admits every plan of a smaller one,
            and the same candidates are tried for it first.
Complexity  Candidates times actions; `seconds` cuts the list short, cheapest and most promising first.
Gaps        Stages of a rank are computed again for all micro-batches or for none. Layers are cut into stages
            of equal numbers. What `exact` proves leaves out computing again.
"""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Final

from tightrope.core import InfeasibleError, Machine
from tightrope.core.units import Bytes, Nanoseconds, format_bytes
from tightrope_ranks.pipeline.bounds import bound, least_bytes
from tightrope_ranks.pipeline.cuts import equal_cuts, least_cuts
from tightrope_ranks.pipeline.exact import MOST, exact_orders
from tightrope_ranks.pipeline.generate import breadth_first, folded, gpipe, interleaved, looped
from tightrope_ranks.pipeline.language import Action, Orders
from tightrope_ranks.pipeline.listing import ListRule, filled, list_orders
from tightrope_ranks.pipeline.lower import lower
from tightrope_ranks.pipeline.simulate import DeadlockError, simulate
from tightrope_ranks.pipeline.starts import bare, shipped
from tightrope_ranks.pipeline.tied import NOTHING_TIED, TiedParameters, with_room
from tightrope_ranks.pipeline.wire import with_wires
from tightrope_ranks.values.ranks import JointPlan, StageCost, StageWork

_KEPT: Final = 64
"""Schedules that keep too much, of which the smallest is found: those with the lowest bounds."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What the planner may do; every technique can be switched off.

    Attributes:
        per_rank: numbers of stages per rank to try; empty = 1, 2, 3, 4 and 8 where there are layers for them.
        fold: also place stages to and fro.
        split: divide backwards into halves.
        again: compute stages again.
        listing: list scheduling beside the published orders.
        shipped: begin from torch's own schedules, too.
        improve: let neighbours change places at the end.
        exact: search all orders of small cases by constraint programming (``tightrope[exact]``); that takes
            its own time, and proves what it finds where it can.
        ascending: keep the backwards of every stage in ascending order of the micro-batches, so that
            gradients are those of one process to the bit.
        seconds: of search, in CPU time of this process.
        seed: of the improvement.
    """

    per_rank: tuple[int, ...] = ()
    fold: bool = True
    split: bool = True
    again: bool = True
    listing: bool = True
    shipped: bool = True
    improve: bool = True
    exact: bool = False
    ascending: bool = False
    seconds: float = 10.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """What is planned.

    Attributes:
        layers: costs of the layers that stages are made of, in order.
        machine: whose links messages go over.
        num_ranks: of the pipeline.
        num_micro: micro-batches.
        budget: bytes per rank; 0 = no limit.
        replicas: of every rank.
        sharded: whether parameters, gradients and state are divided among them.
        balance: cut layers into stages of about equal times, or bytes, instead of equal numbers of layers.
        frozen: first layers without anything to train.
        tied: parameters that several layers use.
        shapes: see `StageWork`.
        dtypes: likewise.
    """

    layers: tuple[StageCost, ...]
    machine: Machine
    num_ranks: int
    num_micro: int
    budget: Bytes = 0
    replicas: int = 1
    sharded: bool = False
    balance: bool = False
    frozen: int = 0
    tied: TiedParameters = NOTHING_TIED
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule that was tried; ``wired`` has its messages."""

    ns: Nanoseconds
    peak: Bytes
    work: StageWork
    orders: Orders
    wires: tuple[int, int]
    again: frozenset[tuple[int, int]]
    method: str
    wired: Orders


def merged(layers: Sequence[StageCost]) -> StageCost:
    """Put layers that follow each other into one stage; what one hands to the next is kept, too.

    A layer without a backward, frozen with all before it, keeps nothing.

    >>> merged((StageCost(1, 2, output=8, saved=5), StageCost(1, 2, input=8, saved=5))).saved
    18
    """
    passing = [0, *(0 if one.backward or one.weight else one.input for one in layers[1:])]  # to frozen ones
    return StageCost(
        forward=sum(one.forward for one in layers),
        backward=sum(one.backward for one in layers),
        weight=sum(one.weight for one in layers),
        input=layers[0].input,
        output=layers[-1].output,
        saved=sum(one.saved for one in layers) + sum(one.output for one in layers[:-1]) - sum(passing),
        half=sum(one.half for one in layers),
        work=max(one.work + more for one, more in zip(layers, passing, strict=True)),
        parameters=sum(one.parameters for one in layers),
        state=sum(one.state for one in layers),
        gather=sum(one.gather for one in layers),
        reduce=sum(one.reduce for one in layers),
        summed=sum(one.whole_gradients for one in layers) if any(one.summed for one in layers) else 0,
    )


def staged(task: PipelineTask, owners: tuple[int, ...], cuts: Sequence[int] = ()) -> StageWork:
    """Cut the layers into stages: where `cuts_of` says so, or of equal numbers of layers."""
    num = len(owners)
    cuts = cuts or equal_cuts(len(task.layers), num)
    ties = task.tied.between(cuts)
    stages = tuple(
        with_room(merged(task.layers[cuts[k] : cuts[k + 1]]), [one for one in ties if k in one.stages])
        for k in range(num)
    )
    frozen = sum(cut <= task.frozen for cut in cuts[1:])
    return StageWork(
        stages,
        owners,
        task.num_micro,
        task.replicas,
        task.sharded,
        frozen,
        ties,
        task.shapes,
        task.dtypes,
    )


def cuts_of(task: PipelineTask, num: int) -> tuple[tuple[int, ...], ...]:
    """Say where so many stages may begin, and the number of layers behind that: one way, or two.

    >>> layers = tuple(StageCost(ns, 0) for ns in (9, 1, 1, 1))
    >>> cuts_of(PipelineTask(layers, Machine("m", ()), 2, 1, balance=True), 2)
    ((0, 1, 4), (0, 2, 4))
    """
    if not task.balance:
        return (equal_cuts(len(task.layers), num),)
    times = [one.forward + one.backward + one.weight for one in task.layers]
    parts = task.replicas if task.sharded else 1
    depth = min(task.num_micro, task.num_ranks)  # micro-batches of which the first rank keeps something
    sizes = [(one.parameters + one.state) // parts + depth * (one.saved + one.output) for one in task.layers]
    return tuple(dict.fromkeys((least_cuts(times, num), least_cuts(sizes, num))))


def placements(task: PipelineTask, options: PipelineOptions) -> list[tuple[int, ...]]:
    """List placements to try."""
    most = len(task.layers) // task.num_ranks
    numbers = options.per_rank or tuple(v for v in (1, 2, 3, 4, 8) if v <= most)
    found = [looped(task.num_ranks, v) for v in numbers]
    if options.fold:
        found += [folded(task.num_ranks, v) for v in numbers if v > 1 and v % 2 == 0]
    return found


def plan_pipeline(
    task: PipelineTask, options: PipelineOptions | None = None, *, below: Nanoseconds = 0
) -> JointPlan:
    """Find the fastest schedule within the bytes of every rank.

    Args:
        task: what is planned.
        options: what may be done.
        below: leave out stages of which no plan takes less, as long as others are left; 0 = no such time.

    Raises:
        InfeasibleError: nothing that was tried fits; says the smallest that was found, and what no plan can
            go below.
    """
    options = options or PipelineOptions()
    search = searched(task, options, below)
    if (best := search.best) is None:
        floor, least = smallest(task), search.fewest()
        raise InfeasibleError(
            f"{format_bytes(task.budget)} per rank is too little for {task.num_ranks} ranks: the smallest "
            f"plan found takes {format_bytes(least)}, none less than {format_bytes(floor)}. Give "
            f"{format_bytes(least)}, more ranks, or smaller micro-batches.",
            asked=task.budget,
            smallest_found=least,
            lower_bound=floor,
        )
    return lower(
        best.work,
        task.machine,
        best.wired,
        again=best.again,
        limits=(task.budget,) * task.num_ranks if task.budget else (),
        ns_bound=bound(best.work, task.machine),
        method=best.method,
        seed=options.seed,
    )


def searched(task: PipelineTask, options: PipelineOptions, below: Nanoseconds = 0) -> "PipelineSearch":
    """Search as `plan_pipeline` does; nothing is written down."""
    search = PipelineSearch(task, options)
    search.run(below)
    return search


def smallest(task: PipelineTask) -> Bytes:
    """Bytes per rank below which no plan exists: all that is held, and one micro-batch's part of one layer.

    >>> smallest(PipelineTask((StageCost(1, 1, saved=7, parameters=8),) * 2, Machine("m", ()), 2, 1))
    15
    """
    parts = task.replicas if task.sharded else 1
    held = sum(one.parameters + one.state for one in task.layers) // parts
    most = max(one.saved + one.work for one in task.layers)
    return max(
        -(-held // task.num_ranks), min(one.parameters + one.state for one in task.layers) // parts + most
    )


class PipelineSearch:
    """The best so far; None where nothing fits."""

    def __init__(self, task: PipelineTask, options: PipelineOptions) -> None:
        self.task, self.options = task, options
        self.best: Tried | None = None
        self.least: Bytes = 1 << 62
        self._numbers = itertools.count()
        self.passed: list[tuple[Bytes, int, tuple[StageWork, Orders, frozenset[tuple[int, int]], str]]] = []
        self.end = time.process_time() + options.seconds
        self.seen: set[tuple[object, ...]] = set()

    def run(self, below: Nanoseconds) -> None:
        """Search; leave out stages of which no plan takes less than ``below``, if others are left."""
        works = [
            staged(self.task, owners, cuts)
            for owners in placements(self.task, self.options)
            for cuts in cuts_of(self.task, len(owners))
        ]
        if below:
            works = [one for one in works if bound(one, self.task.machine) < below] or works[:1]
        if self.options.shipped:
            for work in works:
                self._shipped(work)
        for work in works:
            for orders, method in self._published(work):
                self._try(work, orders, frozenset(), method)
                if self.options.split:
                    for lag in (1 << 30, self.task.num_ranks, 1):
                        halves = filled(work, self.task.machine, orders, lag=lag)
                        self._try(work, halves, frozenset(), f"{method}, idle time filled")
        if self.options.listing:
            for work in works:
                self._list(work, frozenset(), "")
        if self.options.again and (self.best is None or self.task.budget):
            self._again(works)
        self._wires()
        if self.options.improve and self.best is not None:
            self._improve()
        if self.options.exact:
            for work in works:
                self._exact(work)

    def fewest(self) -> Bytes:
        """Return the fewest bytes per rank of the schedules that were tried."""
        for less, _, (work, orders, again, method) in sorted(self.passed, reverse=True):
            if -less >= self.least:
                break
            self._simulated(work, orders, (1, 2 if work.sharded else 3), again, method)
        return self.least

    def over(self) -> bool:
        """Tell whether the time of the options is spent."""
        return time.process_time() > self.end

    def _exact(self, work: StageWork) -> None:
        """Try the best order of a placement, where there are few enough to look at all."""
        kinds = 3 if self.options.split else 2
        if work.sharded or work.frozen or len(work.stages) * work.num_micro_batches * kinds > MOST:
            return
        found = exact_orders(
            work,
            self.task.machine,
            budget=self.task.budget,
            split=self.options.split,
            seed=self.options.seed,
        )
        if found.orders:
            said = ", proved best with these stages" if found.proved else ""
            self._simulated(
                work,
                found.orders,
                (found.ahead, 3),
                frozenset(),
                f"constraint programming{said}",
                found.wired,
            )

    def _shipped(self, work: StageWork) -> None:
        """Try torch's schedules, wired as torch does and as we do, whatever time that takes."""
        for name, wired in shipped(work):
            orders, method = bare(wired), f"torch's {name}"
            halves = any(action.kind in "IW" for row in orders for action in row)
            if (self.options.split or not halves) and not (self.options.ascending and not _ascends(orders)):
                self._simulated(work, orders, (2, 3), frozenset(), method, wired)
                self._try(work, orders, frozenset(), method)

    def _published(self, work: StageWork) -> Iterator[tuple[Orders, str]]:
        ranks, per_rank = self.task.num_ranks, len(work.stages) // self.task.num_ranks
        micro = self.task.num_micro
        if work.owners != looped(ranks, per_rank):
            return
        yield breadth_first(ranks, per_rank, micro), "breadth-first"
        yield interleaved(ranks, per_rank, micro), "interleaved" if per_rank > 1 else "1F1B"
        if per_rank == 1:
            yield gpipe(ranks, micro), "GPipe"
        elif not self.options.ascending:
            yield breadth_first(ranks, per_rank, micro, mirrored=True), "breadth-first, mirrored"
        group = 2 * ranks
        while per_rank > 1 and group < micro:
            yield interleaved(ranks, per_rank, micro, group=group), f"hybrid of {group}"
            group *= 2

    def _room(self, work: StageWork) -> tuple[Bytes, ...]:
        """Bytes of every rank beside what it holds all the time, gathered parameters and whole gradients."""
        found = []
        for rank in range(work.num_ranks):
            room = self.task.budget - work.held(rank)
            if work.sharded:
                own = [work.stages[one] for one in work.local(rank)]
                room -= sum(sorted((one.parameters for one in own), reverse=True)[:2])
                room -= sum(one.whole_gradients for one in own)
            found.append(room)
        return tuple(found)

    def _list(self, work: StageWork, again: frozenset[tuple[int, int]], said: str) -> None:
        micro, ranks = self.task.num_micro, self.task.num_ranks
        room = self._room(work) if self.task.budget else ()
        split = (True, False) if self.options.split else (False,)
        for group in dict.fromkeys(min(micro, g) for g in (1, ranks, micro)):
            for ahead in (0, ranks, 2 * ranks):
                for halves in split:
                    for first in (True, False) if group == micro else (True,):
                        if self.over():
                            return
                        rule = ListRule(group, first, halves, 1 << 30, ahead if ahead < micro else 0)
                        key = (work.owners, rule, again)
                        if key in self.seen:
                            continue
                        self.seen.add(key)
                        orders = list_orders(work, self.task.machine, rule, room=room, again=again)
                        if orders is not None:
                            self._try(work, orders, again, f"list scheduling{said}")

    def _again(self, works: Sequence[StageWork]) -> None:
        """Compute the first stages of every rank again: one, half, all of them."""
        for work in works:
            per_rank = len(work.stages) // self.task.num_ranks
            for count in dict.fromkeys((1, (per_rank + 1) // 2, per_rank)):
                chosen = [one for rank in range(work.num_ranks) for one in work.local(rank)[:count]]
                for share in (1, 2) if per_rank == 1 else (1,):
                    again = frozenset(
                        (stage, micro)
                        for stage in chosen
                        for micro in range(self.task.num_micro)
                        if micro % share == 0
                    )
                    if self.over() and self.best is not None:
                        return
                    said = f", {count} of {per_rank} stages computed again"
                    for orders, method in self._published(work):
                        self._try(work, orders, again, method + said)
                    if self.options.listing:
                        self._list(work, again, said)

    def _try(self, work: StageWork, orders: Orders, again: frozenset[tuple[int, int]], method: str) -> None:
        if self.options.ascending and not _ascends(orders):
            return
        if self.best is not None and self.over():
            return
        least = least_bytes(work, orders, again=again) if self.task.budget else 0
        if least > self.task.budget > 0:
            one = -least, -next(self._numbers), (work, orders, again, method)
            (heappush if len(self.passed) < _KEPT else heappushpop)(self.passed, one)
            return
        found = self._simulated(work, orders, (2, 3), again, method)
        if found is not None and found.peak > self.task.budget > 0 and found.ns < self._to_beat():
            self._simulated(work, orders, (1, 2 if work.sharded else 3), again, method)

    def _to_beat(self) -> Nanoseconds:
        return self.best.ns if self.best is not None else 1 << 62

    def _wires(self) -> None:
        """Post receives of the best order earlier or later, with more or less room for gathers."""
        best = self.best
        if best is not None:
            for ahead in (1, 4, 8, 16):
                for rooms in (2, 3, 4, 5) if best.work.sharded else (3,):
                    if not self.over():
                        self._simulated(best.work, best.orders, (ahead, rooms), best.again, best.method)

    def _simulated(
        self,
        work: StageWork,
        orders: Orders,
        wires: tuple[int, int],
        again: frozenset[tuple[int, int]],
        method: str,
        wired: Orders | None = None,
    ) -> Tried | None:
        try:
            if wired is None:
                wired = with_wires(work, orders, ahead=wires[0], rooms=wires[1])
            timeline = simulate(work, self.task.machine, wired, again=again)
        except DeadlockError:
            return None
        found = Tried(timeline.ns, max(timeline.peaks), work, orders, wires, again, method, wired)
        self.least = min(self.least, found.peak)
        fits = not self.task.budget or found.peak <= self.task.budget
        better = self.best is None or (found.ns, found.peak) < (self.best.ns, self.best.peak)
        if fits and better:
            self.best = found
        return found

    def _improve(self) -> None:
        """Let neighbours in a rank's order change places while that is faster."""
        assert self.best is not None
        draw = random.Random(self.options.seed)
        start, tries = self.best, 0
        size = sum(map(len, start.orders))
        while (
            not self.over()
            and tries < min(200, 40_000 // size)
            and self.best.ns > bound(start.work, self.task.machine)
        ):
            tries += 1
            best = self.best
            rank = draw.randrange(len(best.orders))
            row = list(best.orders[rank])
            at = draw.randrange(len(row) - 1)
            one, other = row[at], row[at + 1]
            if one.micro_batch == other.micro_batch and one.stage == other.stage:
                continue
            row[at], row[at + 1] = other, one
            orders = (*best.orders[:rank], tuple(row), *best.orders[rank + 1 :])
            if self.options.ascending and not _ascends(orders):
                continue
            self._simulated(best.work, orders, best.wires, best.again, best.method)


def _ascends(orders: Orders) -> bool:
    last: dict[int, int] = {}
    for row in orders:
        for stage, kind, micro in (Action(*one) for one in row):
            if kind in "BW":
                if micro < last.get(stage, -1):
                    return False
                last[stage] = micro
    return True
