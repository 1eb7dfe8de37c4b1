"""P5: modelled energy of a step at equal bytes, beside other ways to plan it.

`everything paged` is what an interpreter does that keeps nothing: every op pages in what it reads, and out
what later ops read. `paging only` and `re-runs only` are ours with one of the two switched off (weights are
paged either way, as they lie in flash). `program` is POET's mixed-integer program: weights are copies that
are given, every op that changes one pages it out, no op writes over its input, and its limit is on live
bytes, where ours is on bytes with addresses. `least` counts every op once, every weight in once and every
changed one out once: no plan takes less, and where it is above 85 % of another way, nothing can be 15 %
below that; where the bound of the program is in which ops may write over inputs, nothing that it can say.
"""

import dataclasses
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace
from rich.console import Console

from benchmarks.micro.nets import Made, dense, gestures, lenet, poet_resnet, residual
from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import (
    Bytes,
    Flag,
    Graph,
    InfeasibleError,
    Limits,
    Machine,
    Op,
    PageIn,
    StorageId,
    fitted,
)
from tightrope_micro import capture_step
from tightrope_micro.paging.economy import Economy
from tightrope_micro.paging.residency import CopyPrices
from tightrope_micro.planning import MicroPlan, plan_step

if TYPE_CHECKING:
    from tightrope_planners.peers.poet import PoetAnswer

_SMALL: Final[tuple[tuple[Callable[[], Made], tuple[int, ...]], ...]] = (
    (gestures, (5_400, 5_800, 6_200, 6_600, 7_200)),
    (dense, (28_200, 30_000, 34_000)),
    (lenet, (40_000, 50_000, 65_536)),
)
_LARGE: Final[tuple[tuple[Callable[[], Made], tuple[int, ...]], ...]] = (
    (residual, (235_000, 300_000, 400_000)),
    (poet_resnet, (262_144, 350_000, 480_000)),
)
_WITHIN: Final = 1.02
_BELOW: Final = 0.85


class _Figures(NamedTuple):
    """Joules of a step, None where a way does not fit."""

    ours: float
    everything: float
    paging: float | None
    reruns: float | None
    least: float


def p5(console: Console, seconds: float) -> list[Row]:
    """Print the tables, and tell whether both halves of the bar hold.

    Args:
        console: to print on.
        seconds: of the solver, per program.
    """
    console.print(
        "P5 joules modelled per step: net, RAM, everything paged, paging only, re-runs only, ours, least"
    )
    machine = find_machine("poet-cortex-m4f")
    good = total = possible = closed = beside = nothing = opened = bounded = 0
    worst = 0.0
    for make, limits in (*_SMALL, *_LARGE):
        graph = capture_step(*make()).graph
        for ram in limits:
            planned = _planned(graph, machine, ram, Economy(objective="joules"))
            if planned is None:
                console.print(f"{make.__name__} {ram}: no plan")
                continue
            figures = _figures(graph, machine, planned)
            bar = _BELOW * min(figures.everything, figures.reruns or 0.0)
            if figures.reruns is not None:
                total, good, possible = (
                    total + 1,
                    good + (figures.ours <= bar),
                    possible + (figures.least <= bar),
                )
            line = f"{make.__name__:<12} {ram:>7} {_row(figures)}"
            if (make, limits) in _SMALL:
                answer, fixed = program(planned.tiled.graph, planned.plan.budget, machine, seconds)
                line += f"  program {_said(answer, fixed)}"
                if figures.reruns is not None and figures.least <= bar < answer.bound + fixed:
                    free, fixed = program(
                        planned.tiled.graph, planned.plan.budget, machine, seconds, in_place=True
                    )
                    line += f", with ops that write over inputs {free.bound + fixed:.4g} at least"
                    bounded += bar < free.bound + fixed < inf
                nothing, opened = nothing + (answer.bound == inf), opened + (not answer.proved)
                if answer.proved and answer.bound < inf:
                    closed += 1
                    ratio = figures.ours / (answer.bound + fixed)
                    worst, beside = max(worst, ratio), beside + (ratio <= _WITHIN)
            console.print(line)
    return [
        Row(
            "P5 program",
            f"joules <= {_WITHIN}x of the program's optimum where it is proved",
            f"at {beside} of {closed} points, worst {worst:.4f}x; at {nothing} more the program has no plan, "
            f"at {opened} it is not solved within {seconds:.0f} s",
            beside == closed > 0,
        ),
        Row(
            "P5 ways",
            "15 % below paging everything and below re-runs only, where both fit",
            f"at {good} of {total} points; bounds permit it at {possible - bounded}: at {total - possible} "
            f"of them even the least is not that far below, at {bounded} more the program has nothing even "
            "where ops write over inputs",
            good == total > 0,
        ),
    ]


def _planned(graph: Graph, machine: Machine, ram: Bytes, economy: Economy) -> MicroPlan | None:
    try:
        return plan_step(graph, machine, ram=ram, economy=economy)
    except InfeasibleError:
        return None


def _figures(graph: Graph, machine: Machine, planned: MicroPlan) -> _Figures:
    """Plan the same step in the other ways."""
    asked, cut = Economy(objective="joules"), planned.tiled.graph
    prices = CopyPrices.of(cut, machine)
    paging = _planned(graph, machine, planned.ram, dataclasses.replace(asked, reruns=False))
    alone = _planned(graph, machine, planned.ram, dataclasses.replace(asked, pages=False))
    whole = alone is not None and not _pages_results(alone)
    once = sum(op.ns for op in cut.ops) * 1e-9 * machine.watts
    later = {s for op in cut.ops for s in op.reads}
    everything, least = once, once
    for op in cut.ops:
        everything += sum(prices.in_joules[s] for s in op.reads)
        everything += sum(prices.out_joules[s] for s in {*op.creates} & later | {*op.mutates})
    least += sum(prices.in_joules[s] for s in later if cut.storages[s].home)
    least += sum(prices.out_joules[s] for s in _changed(cut))
    return _Figures(
        planned.plan.forecast.joules,
        everything,
        paging.plan.forecast.joules if paging else None,
        alone.plan.forecast.joules if alone and whole else None,
        least,
    )


def _pages_results(planned: MicroPlan) -> bool:
    """Tell whether a plan pages anything that an op made."""
    storages = planned.tiled.graph.storages
    steps = planned.plan.schedule.steps
    return any(isinstance(step, PageIn) and not storages[step.storage].home for step in steps)


def _changed(graph: Graph) -> set[StorageId]:
    return {s for op in graph.ops for s in op.mutates if graph.storages[s].home}


def program(
    graph: Graph, budget: Bytes, machine: Machine, seconds: float, *, in_place: bool = False
) -> "tuple[PoetAnswer, float]":
    """Solve POET's program of a step with weights; returns the joules of their page-outs too.

    Args:
        graph: priced; some storages of the caller have a slower home.
        budget: of live bytes.
        machine: with a slower tier, and watts.
        seconds: of the solver.
        in_place: whether ops may write over inputs: a bound alone.
    """
    from tightrope_planners.peers.poet import PoetKnobs, solve_poet

    graph = fitted(graph, machine.tiers[0].alignment)
    prices = CopyPrices.of(graph, machine)
    with_loads, given = _loads(graph)
    over = {op.id + len(given): op.over for op in graph.ops if op.over >= 0 and op.over not in given}
    knobs = PoetKnobs(
        seconds=seconds, max_columns=2_000_000, given=given, in_place=over if in_place else None
    )
    answer = solve_poet(with_loads, machine, Limits((budget,)), knobs=knobs)
    return answer, sum(prices.out_joules[s] for s in _changed(graph))


def _loads(graph: Graph) -> tuple[Graph, frozenset[StorageId]]:
    """Put an op in front for every weight that is read, as the program knows no storage without one."""
    used = {s for op in graph.ops for s in op.reads}
    homes = [storage.id for storage in graph.storages if storage.home and storage.id in used]
    ops = [
        Op(number, f"load_{number}", "tightrope.load", (), (storage,), flags=Flag.NEVER_RECOMPUTE)
        for number, storage in enumerate(homes)
    ]
    for op in graph.ops:
        once = Flag.NEVER_RECOMPUTE if op.mutates else Flag.NONE
        moved = replace(op, id=op.id + len(homes), mutates=(), over=-1, variant=-1, flags=op.flags | once)
        ops.append(replace(moved, arguments=(), keywords=(), results=()))
    storages = [replace(s, external=False, home=0) if s.home else s for s in graph.storages]
    return Graph(tuple(ops), tuple(storages), alignment=graph.alignment), frozenset(homes)


def _row(figures: Sequence[float | None]) -> str:
    ours, everything, paging, reruns, least = figures
    shown = (everything, paging, reruns, ours, least)
    return " ".join("      -" if one is None else f"{one:7.4g}" for one in shown)


def _said(answer: "PoetAnswer", fixed: float) -> str:
    if answer.bound == inf:
        return "none fits"
    return f"{answer.bound + fixed:.4g} {'optimum' if answer.proved else 'at least (not closed)'}"
