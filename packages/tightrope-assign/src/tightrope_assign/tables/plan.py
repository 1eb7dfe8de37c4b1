"""Where embedding tables live: table by table first, then by columns where that gains.

Idea        The best of several greedy orders, refined by swaps. Then a beam over splits: the largest and
            the most expensive parts are halved, and all parts are placed anew. A split plan replaces the
            other one where it is cheaper by the model, and where this machine's lookups say so too.
Source      NeuroShard, MLSys 2023: outer, column-wise search; the gate by measurement and the swaps are ours
Guarantee   Within the bytes of every device; never more expensive, by the model, than greedy by lookups.
Complexity  At most width * depth * 20 greedy placements, within ``seconds``.
Gaps        Splits that do not pay one by one are tried two deep only.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, Nanoseconds, TightropeError
from tightrope.core.units import shown
from tightrope_assign.tables.greedy import FEW_SCALES, by_key, fitting_parts, greedy, split
from tightrope_assign.tables.problem import Part, TableProblem, lower_bound, table_problem
from tightrope_assign.tables.refine import refine
from tightrope_assign.values.cluster import LARGEST, Cluster
from tightrope_assign.values.costs import CONSTANTS, TableCosts
from tightrope_assign.values.tables import TablePlan, TableSet, TableShard

METHODS: Final = ("auto", "greedy", "table", "exact")
LEAST_GAIN: Final = 0.05
"""By which splits that bytes do not demand have to gain, as predicted and each time as measured."""
_ROUNDS: Final = 3
_WIDTH, _DEPTH, _CANDIDATES, _PATIENCE, _KICKS = 3, 10, 10, 2, 150

Measure = Callable[[Sequence[Sequence[TableShard]]], Nanoseconds]
"""Times the lookups of each device's shards on this machine, and gives the slowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Effort of the search.

    Attributes:
        method: ``greedy``; ``table``, refined by swaps; ``auto``, by columns too; ``exact``, an integer
            program on costs that are added up, which needs OR-Tools.
        seconds: that the search takes at most, about.
    """

    method: str = "auto"
    seconds: float = 10.0


DEFAULT: Final = TableOptions()


def plan_tables(
    tables: TableSet,
    cluster: Cluster,
    costs: TableCosts = CONSTANTS,
    *,
    options: TableOptions = DEFAULT,
    measure: Measure | None = None,
    replaces: TablePlan | None = None,
) -> TablePlan:
    """Decide which columns of which table are on which device.

    Args:
        tables: what is placed.
        cluster: devices with bytes and rates; its links, if any, replace the exchange prices of ``costs``.
        costs: prices.
        options: method and effort.
        measure: times lookups here, before splits that bytes do not demand; None = the prediction decides.
        replaces: plan of a cluster that was: parts stay where that costs nothing; moved bytes are counted.

    Returns:
        A plan within the bytes of every device, with a lower bound.

    Raises:
        TightropeError: tables, cluster, costs or an option cannot be; says which and where.
        InfeasibleError: no assignment within the bytes was found.

    Example:
        >>> from tightrope_assign.tables import EmbeddingTable, PlaceDevice
        >>> tables = TableSet((EmbeddingTable("user", 1000, 16, 2.0), EmbeddingTable("item", 1000, 16)))
        >>> plan = plan_tables(tables, Cluster((PlaceDevice("a"), PlaceDevice("b"))))
        >>> sorted(shard.label + " " + shard.device for shard in plan.placed)
        ['item[0:16] a', 'user[0:16] b']
    """
    if options.method not in METHODS:
        raise TightropeError(f"method {shown(options.method)} is not known: take {', '.join(METHODS)}.")
    if not 0 < options.seconds <= 86_400:
        raise TightropeError(f"seconds={shown(options.seconds)}: give a number above 0, at most 86400.")
    problem = table_problem(tables, cluster, costs)
    until = time.monotonic() + options.seconds
    planner = options.method
    measured: tuple[Nanoseconds, ...] = ()
    if replaces is not None:
        planner = "replan"
        parts, hosts = _kept(problem, replaces)
        if options.method != "greedy":
            hosts = _settled(problem, replaces, parts, refine(problem, parts, hosts, until=until))
    elif options.method == "exact":
        from tightrope_assign.tables.exact import solve_additive

        parts, start = _by_table(problem, until, kicks=0)
        hosts, _ = solve_additive(problem, parts, start, seconds=options.seconds)
    else:
        parts, hosts = _by_table(problem, until, kicks=0 if options.method == "greedy" else _KICKS)
        planner = "greedy" if options.method == "greedy" else "table-wise"
    if options.method == "auto" and replaces is None and measure is not None:
        simple = by_key(problem, parts, "lookups")
        if simple is not None and _gate(problem, measure, (parts, hosts), (parts, simple))[0]:
            hosts, planner = simple, "greedy by lookups"
    whole = problem.cost(parts, hosts)
    if options.method == "auto" and replaces is None:
        wide, places = _by_columns(problem, parts, hosts, until)
        if problem.cost(wide, places) < whole * (1 - LEAST_GAIN):
            gains, measured = _gate(problem, measure, (parts, hosts), (wide, places))
            if gains:
                parts, hosts, planner = wide, places, "column-wise"
    cost = problem.cost(parts, hosts)
    if max(cost, whole) > LARGEST:
        raise TightropeError(f"a step takes {cost / 1e9:.1e} s by these prices: give less than 2^53 ns.")
    return TablePlan(
        placed=problem.shards(parts, hosts),
        cost=cost,
        lower_bound=lower_bound(problem),
        table_wise=whole,
        measured=measured,
        planner=planner,
        costs=costs.label,
        moved_bytes=0 if replaces is None else _bytes_moved(problem, replaces, parts, hosts),
    )


def _by_table(problem: TableProblem, until: float, *, kicks: int) -> tuple[list[Part], list[int]]:
    """Place tables, split as far as bytes demand alone."""
    parts, fits = fitting_parts(problem)
    found = greedy(problem, parts)
    starts = [fits if found is None else found[1]]
    keys = (("lookups", ""), ("cost", ""), ("cost", "size"))
    starts += [hosts for key in keys if (hosts := by_key(problem, parts, *key)) is not None]
    best = min(starts, key=lambda hosts: problem.cost(parts, hosts))
    if kicks:
        half = (time.monotonic() + until) / 2
        best = refine(problem, parts, best, until=half, kicks=kicks)
    return parts, best


def _by_columns(
    problem: TableProblem, parts: list[Part], hosts: list[int], until: float
) -> tuple[list[Part], list[int]]:
    """Search over splits by a beam, and refine the best plan that has some."""
    beam, seen = [(problem.cost(parts, hosts), parts, hosts)], {frozenset(parts)}
    best, waited = (beam[0][0], parts, hosts), 0
    for _ in range(_DEPTH):
        found = []
        for _, now, _ in beam:
            able = [part for part in now if split(part)]
            chosen = (
                sorted(able, key=problem.size)[-_CANDIDATES:]
                + sorted(able, key=problem.single)[-_CANDIDATES:]
            )
            for part in dict.fromkeys(chosen):
                trial = [one for old in now for one in (split(old) if old == part else (old,))]
                if frozenset(trial) in seen or time.monotonic() > until - 0.2:
                    continue
                seen.add(frozenset(trial))
                if (place := greedy(problem, trial, FEW_SCALES)) is not None:
                    found.append((place[0], trial, place[1]))
        beam = sorted(found, key=lambda one: one[0])[:_WIDTH]
        if not beam:
            break
        refined = refine(problem, beam[0][1], beam[0][2], until=until, kicks=_KICKS // 15)
        cost = problem.cost(beam[0][1], refined)
        waited = waited + 1 if cost >= best[0] else 0
        best = min(best, (cost, beam[0][1], refined), key=lambda one: one[0])
        if waited == _PATIENCE:
            break
    return best[1], best[2]


def _gate(
    problem: TableProblem, measure: Measure | None, *plans: tuple[list[Part], list[int]]
) -> tuple[bool, tuple[Nanoseconds, ...]]:
    """Time both plans by turns: does the second gain each time, and what took each in the median."""
    if measure is None:
        return True, ()
    names = problem.cluster.names
    shards = [problem.shards(*plan) for plan in plans]
    exchange = [float(problem.exchanges(problem.loads(*plan)[1]).sum()) for plan in plans]
    times: tuple[list[Nanoseconds], ...] = ([], [])
    gains = True
    for _ in range(_ROUNDS):
        for taken, one in zip(times, shards, strict=True):
            taken.append(measure([[s for s in one if s.device == name] for name in names]))
        gains &= times[1][-1] + exchange[1] < (1 - LEAST_GAIN) * (times[0][-1] + exchange[0])
        if not gains:
            break
    return gains, tuple(int(statistics.median(taken)) for taken in times)


def _homes(problem: TableProblem, plan: TablePlan) -> dict[Part, int]:
    """Map parts of a plan to the positions of their devices; -1 where a device is lost."""
    position = {name: at for at, name in enumerate(problem.cluster.names)}
    number = {table.name: at for at, table in enumerate(problem.tables.tables)}
    return {(number[s.table], s.start, s.stop): position.get(s.device, -1) for s in plan.placed}


def _kept(problem: TableProblem, plan: TablePlan) -> tuple[list[Part], list[int]]:
    """Keep parts where they were; the others, the largest first, go where they cost least."""
    homes = _homes(problem, plan)
    parts, hosts = list(homes), list(homes.values())
    free = problem.room.copy()
    for part, host in homes.items():
        if host >= 0:
            free[host] -= problem.size(part)
    lookups, _ = problem.loads([p for p in parts if homes[p] >= 0], [h for h in hosts if h >= 0])
    for at in sorted(range(len(parts)), key=lambda one: -problem.size(parts[one])):
        if hosts[at] < 0:
            able = [d for d in range(len(free)) if problem.size(parts[at]) <= free[d]]
            if not able:
                return _by_table(problem, time.monotonic(), kicks=0)
            alone = problem.single(parts[at])
            hosts[at] = min(able, key=lambda d: lookups[d] + alone * problem.slow[d])
            free[hosts[at]] -= problem.size(parts[at])
            lookups[hosts[at]] += alone * problem.slow[hosts[at]]
    return (parts, hosts) if free.min() >= 0 else _by_table(problem, time.monotonic(), kicks=0)


def _settled(problem: TableProblem, plan: TablePlan, parts: list[Part], hosts: list[int]) -> list[int]:
    """Bring parts back to their devices, the most bytes first, where that costs nothing."""
    homes, now, cost = _homes(problem, plan), list(hosts), problem.cost(parts, hosts)
    held = problem.room.copy()
    for part, host in zip(parts, now, strict=True):
        held[host] -= problem.size(part)
    for at in sorted(range(len(parts)), key=lambda one: -problem.size(parts[one])):
        home, size = homes.get(parts[at], -1), problem.size(parts[at])
        if home in (-1, now[at]) or size > held[home]:
            continue
        trial = [*now[:at], home, *now[at + 1 :]]
        if problem.cost(parts, trial) <= cost:
            held[now[at]] += size
            held[home] -= size
            now = trial
    return now


def _bytes_moved(
    problem: TableProblem, plan: TablePlan, parts: Sequence[Part], hosts: Sequence[int]
) -> Bytes:
    """Add up the bytes of parts that are not where they were, as the same columns."""
    homes = _homes(problem, plan)
    return sum(problem.size(part) for part, host in zip(parts, hosts, strict=True) if homes.get(part) != host)
