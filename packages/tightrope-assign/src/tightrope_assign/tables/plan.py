"""Where embedding tables live: table by table first, then by columns where that gains.

Idea        The best of several greedy orders, refined by swaps. Then a beam over splits: the largest and
            the most expensive parts are halved, and all parts are placed anew. A split plan replaces the
            other one where it is cheaper by the model, and where this machine's lookups say so too.
Source      NeuroShard, MLSys 2023: outer, column-wise search; the gate by measurement and the swaps are ours
Guarantee   Within the bytes of every device; never more expensive, by the model, than greedy by lookups.
            Every phase ends with ``seconds``, but for one round of measurements.
Complexity  At most width * depth * 20 greedy placements, within ``seconds``.
Gaps        Splits that do not pay one by one are tried two deep only.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tightrope.core import Nanoseconds, TightropeError
from tightrope.core.units import shown
from tightrope_assign.tables.greedy import SCALES, by_key, divided, fitting_parts, greedy, split
from tightrope_assign.tables.problem import Part, TableProblem
from tightrope_assign.tables.refine import refine
from tightrope_assign.values.cluster import LARGEST, Cluster
from tightrope_assign.values.costs import CONSTANTS, TableCosts
from tightrope_assign.values.tables import TablePlan, TableSet, TableShard

METHODS: Final = ("auto", "greedy", "table")
LEAST_GAIN: Final = 0.05
"""By which splits that bytes do not demand have to gain, as predicted and each time as measured."""
_FEW_SCALES: Final = (SCALES[1], SCALES[4], SCALES[-1])
_ROUNDS, _WIDTH, _DEPTH, _CANDIDATES, _PATIENCE, _KICKS = 3, 3, 10, 10, 2, 150

Placement: TypeAlias = tuple[list[Part], list[int]]
Measure = Callable[[Sequence[Sequence[TableShard]]], Nanoseconds]
"""Times the lookups of each device's shards on this machine, and gives the slowest."""


def plan_tables(
    tables: TableSet,
    cluster: Cluster,
    costs: TableCosts = CONSTANTS,
    *,
    method: str = "auto",
    seconds: float = 10.0,
    measure: Measure | None = None,
    replaces: TablePlan | None = None,
) -> TablePlan:
    """Decide which columns of which table are on which device.

    Args:
        tables: what is placed.
        cluster: devices with bytes and rates; its links, if any, replace the exchange prices of ``costs``.
        costs: prices.
        method: ``greedy``; ``table``, refined by swaps; ``auto``, by columns too.
        seconds: that the search takes at most, about.
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
        >>> [shard.label for shard in plan.placed], len({shard.device for shard in plan.placed})
        (['user[0:16]', 'item[0:16]'], 2)
    """
    if method not in METHODS:
        raise TightropeError(f"method {shown(method)} is not known: take {', '.join(METHODS)}.")
    if not 0 < seconds <= 86_400:
        raise TightropeError(f"seconds={shown(seconds)}: give a number above 0, at most 86400.")
    until = time.monotonic() + seconds
    problem = TableProblem(tables, cluster, costs)
    measured: tuple[Nanoseconds, ...] = ()
    homes = {} if replaces is None else problem.homes(replaces)
    if replaces is not None:
        planner, parts = "replan", list(homes)
        kept = by_key(problem, parts, "cost", "size", list(homes.values()))
        parts, hosts = _by_table(problem, until, kicks=0) if kept is None else (parts, kept)
        if method != "greedy":
            hosts = _settled(problem, homes, parts, refine(problem, parts, hosts, until=until), until)
    else:
        planner = "greedy" if method == "greedy" else "table-wise"
        parts, hosts = _by_table(problem, until, kicks=0 if method == "greedy" else _KICKS)
    search = method == "auto" and replaces is None
    simple = by_key(problem, parts, "lookups") if search and measure is not None else None
    if simple is not None and _gate(problem, measure, until, (parts, hosts), (parts, simple))[0]:
        hosts, planner = simple, "greedy by lookups"
    whole = problem.cost(parts, hosts)
    if search:
        wide = _by_columns(problem, parts, hosts, until)
        if problem.cost(*wide) < whole * (1 - LEAST_GAIN):
            gains, measured = _gate(problem, measure, until, (parts, hosts), wide)
            if gains:
                (parts, hosts), planner = wide, "column-wise"
    cost = problem.cost(parts, hosts)
    if max(cost, whole) > LARGEST:
        raise TightropeError(f"a step takes {cost / 1e9:.1e} s by these prices: give less than 2^53 ns.")
    moved = [part for part, host in zip(parts, hosts, strict=True) if homes.get(part) != host]
    return TablePlan(
        problem.shards(parts, hosts), cost, problem.lower_bound(), whole, measured, planner, costs.label,
        sum(map(problem.size, moved)) if replaces is not None else 0,
    )  # fmt: skip


def _by_table(problem: TableProblem, until: float, *, kicks: int) -> Placement:
    """Place tables, split as far as bytes demand alone."""
    parts, fits = fitting_parts(problem, until)
    keys = (("lookups", ""), ("cost", ""), ("cost", "size"))
    starts = [greedy(problem, parts, until=until), *(by_key(problem, parts, *key) for key in keys)]
    best = min([fits, *filter(None, starts)], key=lambda hosts: problem.cost(parts, hosts))
    if kicks:
        best = refine(problem, parts, best, until=(time.monotonic() + until) / 2, kicks=kicks)
    return parts, best


def _by_columns(problem: TableProblem, parts: list[Part], hosts: list[int], until: float) -> Placement:
    """Search over splits by a beam, and refine the best plan that has some."""
    best, beam, seen, waited = (problem.cost(parts, hosts), parts, hosts), [parts], {frozenset(parts)}, 0
    for _ in range(_DEPTH):
        found: list[tuple[Nanoseconds, list[Part], list[int]]] = []
        for now in beam:
            able = [part for part in now if split(part)]
            price = dict(zip(able, problem.alone(able).tolist(), strict=True)) if able else {}
            most = [sorted(able, key=key)[-_CANDIDATES:] for key in (problem.size, price.__getitem__)]
            for part in dict.fromkeys([*most[0], *most[1]]):
                trial = divided(now, {part})
                if frozenset(trial) in seen or time.monotonic() > until:
                    continue
                seen.add(frozenset(trial))
                if (place := greedy(problem, trial, _FEW_SCALES, until)) is not None:
                    found.append((problem.cost(trial, place), trial, place))
        found = sorted(found, key=lambda one: one[0])[:_WIDTH]
        if not found:
            break
        beam = [trial for _, trial, _ in found]
        refined = refine(problem, beam[0], found[0][2], until=until, kicks=_KICKS // 15)
        cost = problem.cost(beam[0], refined)
        waited = waited + 1 if cost >= best[0] else 0
        best = min(best, (cost, beam[0], refined), key=lambda one: one[0])
        if waited == _PATIENCE:
            break
    return best[1], best[2]


def _gate(
    problem: TableProblem, measure: Measure | None, until: float, *plans: Placement
) -> tuple[bool, tuple[Nanoseconds, ...]]:
    """Time both plans by turns: does the second gain each time, and what took each in the median."""
    if measure is None:
        return True, ()
    shards = [problem.shards(*plan) for plan in plans]
    exchange = [float(problem.exchanges(problem.loads(*plan)[1]).sum()) for plan in plans]
    times: tuple[list[Nanoseconds], ...] = ([], [])
    gains = True
    while gains and len(times[0]) < _ROUNDS and (not times[0] or time.monotonic() < until):
        for taken, one in zip(times, shards, strict=True):
            taken.append(measure([[s for s in one if s.device == name] for name in problem.cluster.names]))
        gains = times[1][-1] + exchange[1] < (1 - LEAST_GAIN) * (times[0][-1] + exchange[0])
    return gains, tuple(int(statistics.median(taken)) for taken in times)


def _settled(
    problem: TableProblem, homes: dict[Part, int], parts: list[Part], hosts: list[int], until: float
) -> list[int]:
    """Bring parts back to their devices, the most bytes first, where that costs nothing."""
    free, cost = problem.room.copy(), problem.cost(parts, hosts)
    for part, host in zip(parts, hosts, strict=True):
        free[host] -= problem.size(part)
    for at in sorted(range(len(parts)), key=lambda one: -problem.size(parts[one])):
        home, size, now = homes.get(parts[at], -1), problem.size(parts[at]), hosts[at]
        if home in (-1, now) or size > free[home] or time.monotonic() > until:
            continue
        if problem.cost(parts, [*hosts[:at], home, *hosts[at + 1 :]]) <= cost:
            hosts[at] = home
            free[now] += size
            free[home] -= size
    return hosts
