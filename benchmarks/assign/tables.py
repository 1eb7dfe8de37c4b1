"""N1 to N6, and tables' W1 to W3: embedding tables on devices.

N1: the fitted prices on sets that were left out. N2: slowest lookups as measured, with exchanges as priced,
against greedy plans and torchrec's planner on the same tables and bytes. N3: bytes and columns. N4: time to
plan. N5: the integer program on sums. N6: plans by columns against plans without.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import torch
from rich.console import Console

from benchmarks.assign.additive import additive, largest_sum, solve_additive
from benchmarks.assign.cases import oracles
from benchmarks.assign.torchrec_peer import torchrec_plan, torchrec_refusal
from benchmarks.micro.rows import Row
from tightrope.core import InfeasibleError, JudgeError
from tightrope.native.processor import described
from tightrope_assign.judge.tables import check_table_plan
from tightrope_assign.lookups.bench import LookupBench, collect, made_up_tables, measured_by
from tightrope_assign.lookups.learn import fit_costs
from tightrope_assign.tables import (
    CONSTANTS,
    Cluster,
    PlaceDevice,
    TableCosts,
    TablePlan,
    TableSet,
    plan_tables,
)
from tightrope_assign.tables.greedy import by_key
from tightrope_assign.tables.problem import Part, TableProblem
from tightrope_shared.cp import Worker

SECONDS: Final = 120
"""CPU time of the collection."""
NUM_TASKS: Final = 50
KEYS: Final = ("dim", "size", "lookups")


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names."""
    bars = (n1, n2, n3, n4, n5, n6, w1, w2, w3)
    return {bar.__name__.upper(): bar for bar in bars}


@cache
def bench() -> LookupBench:
    torch.set_num_threads(1)
    return LookupBench()


@cache
def costs() -> TableCosts:
    """Fit prices to what is measured here; measurements of an earlier run are gone on with."""
    path = Path(tempfile.gettempdir()) / f"tightrope-measured-sets-{described()[1]}.jsonl"
    return fit_costs(collect(path, seconds=SECONDS, bench=bench()))


def tight(tables: TableSet, num: int, share: float = 1.25) -> Cluster:
    """Equal devices with a share of the bytes, and room for the largest table."""
    size = [4 * table.rows * table.dim for table in tables.tables]
    room = max(round(share * sum(size) / num), max(size))
    return Cluster(tuple(PlaceDevice(f"d{at}", room) for at in range(num)))


def tasks(num: int = NUM_TASKS, share: float = 1.25) -> list[tuple[TableSet, Cluster]]:
    """Draw tasks of 10 to 60 tables, on 4 and 8 devices by turns."""
    found = []
    for seed in range(num):
        tables = made_up_tables(random.Random(seed).randint(10, 60), seed=1000 + seed)
        found.append((tables, tight(tables, 4 + 4 * (seed % 2), share)))
    return found


def n1() -> list[Row]:
    figures = costs().figures
    error, tau = figures["median_error"], figures["kendall"]
    return [
        Row(
            "N1",
            "median error <= 10 %, Kendall >= .85 on sets that were left out; <= 5 min of collection",
            f"{100 * error:.1f} %, Kendall {tau:.3f}; {figures['sets']:.0f} sets, measured for {SECONDS} s "
            "of CPU time or longer; "
            f"a linear model {100 * figures['median_error_linear']:.1f} %",
            error <= 0.1 and tau >= 0.85,
        )
    ]


def _whole(tables: TableSet) -> list[Part]:
    return [(at, 0, table.dim) for at, table in enumerate(tables.tables)]


def _plans(tables: TableSet, cluster: Cluster) -> dict[str, tuple[Sequence[Part], Sequence[int]]]:
    """Plan by every method; a method without a plan within the bytes is left out."""
    problem, parts = TableProblem(tables, cluster, costs()), _whole(tables)
    found: dict[str, tuple[Sequence[Part], Sequence[int]]] = {}
    for key in KEYS:
        if (hosts := by_key(problem, parts, key)) is not None:
            found[f"greedy by {key}"] = parts, hosts
    if not torchrec_refusal() and (peer := torchrec_plan(tables, cluster)) is not None:
        found["torchrec"] = peer
    measure = measured_by(bench(), tables)
    for name, method in (("table-wise", "table"), ("ours", "auto")):
        plan = plan_tables(tables, cluster, costs(), method=method, seconds=1.0, measure=measure)
        check_table_plan(tables, cluster, costs(), plan)
        found[name] = placed(tables, cluster, plan)
    return found


def placed(tables: TableSet, cluster: Cluster, plan: TablePlan) -> tuple[list[Part], list[int]]:
    """Write a plan by positions."""
    number = {table.name: at for at, table in enumerate(tables.tables)}
    parts = [(number[s.table], s.start, s.stop) for s in plan.placed]
    return parts, [cluster.names.index(s.device) for s in plan.placed]


@cache
def measured_tasks() -> list[dict[str, tuple[float, float]]]:
    """Per task and method: the slowest lookups as measured, and exchanges as priced, in ms."""
    found = []
    for tables, cluster in tasks(share=1.5):
        problem, measure = TableProblem(tables, cluster, costs()), measured_by(bench(), tables)
        row, known = {}, {}
        for name, (parts, hosts) in _plans(tables, cluster).items():
            shards = problem.shards(parts, hosts)
            if shards not in known:
                known[shards] = measure([[s for s in shards if s.device == d] for d in cluster.names]) / 1e6
            exchange = float(problem.exchanges(problem.loads(parts, hosts)[1]).sum()) / 1e6
            row[name] = known[shards], exchange
        found.append(row)
    return found


def _mean(name: str, found: list[dict[str, tuple[float, float]]], *, exchange: bool = True) -> float:
    return statistics.mean(row[name][0] + exchange * row[name][1] for row in found)


def n2() -> list[Row]:
    found = measured_tasks()
    greedy = [f"greedy by {key}" for key in KEYS]
    common = [row for row in found if all(name in row for name in greedy)]
    best = min(greedy, key=lambda name: _mean(name, common))
    ours, first = _mean("ours", common), _mean(best, common)
    by_task = statistics.mean(min(sum(row[name]) for name in greedy) for row in common)
    worse = [sum(r["ours"]) / sum(r["greedy by lookups"]) for r in common]
    said = "; ".join(
        f"{name} {_mean(name, common):.2f} ({_mean(name, common, exchange=False):.2f} of lookups)"
        for name in [*greedy, "table-wise", "ours"]
    )
    result = [
        Row(
            "N2",
            f"slowest measured lookups and priced exchanges >= 5 % below the best greedy, on {len(common)} "
            f"of {len(found)} tasks that all greedy orders fit",
            f"{100 * (1 - ours / first):.1f} % below {best}, {100 * (1 - ours / by_task):.1f} % below the "
            f"best of each task; means, ms: {said}",
            ours <= 0.95 * first,
        ),
        Row(
            "N2",
            "never worse than greedy by lookups by more than 1 %",
            f"worst {max(worse):.3f} of it; {sum(one > 1.01 for one in worse)} of {len(worse)} above 1.01",
            max(worse) <= 1.01,
        ),
    ]
    if why := torchrec_refusal():
        return [*result, Row("N2", "torchrec's planner in the same run", f"not run: {why}", held=False)]
    both = [row for row in found if "torchrec" in row]
    ratio = statistics.mean(sum(row["ours"]) for row in both) / statistics.mean(
        sum(row["torchrec"]) for row in both
    )
    claim = f">= 10 % below torchrec's plan, {len(both)} tasks that it plans within the same bytes"
    return [*result, Row("N2", claim, f"{100 * (1 - ratio):.1f} % below", ratio <= 0.9)]


def n3() -> list[Row]:
    wrong = planned = refused = 0
    for seed in range(100):
        tables = made_up_tables(random.Random(seed).randint(3, 40), seed=seed)
        cluster = tight(tables, random.Random(seed).choice((2, 4, 8)), share=1.0 + seed / 1000)
        smaller = tuple(
            msgspec.structs.replace(one, bytes=round(one.bytes * 0.97)) for one in cluster.devices
        )
        cluster = Cluster(smaller) if seed % 2 else cluster
        try:
            plan = plan_tables(tables, cluster, method="table", seconds=0.3)
            planned += 1
            check_table_plan(tables, cluster, CONSTANTS, plan)
        except InfeasibleError:
            refused += 1
        except JudgeError:
            wrong += 1
    return [
        Row(
            "N3",
            "tight bytes: no violation, every column placed once",
            f"{planned} plans judged, {wrong} wrong, {refused} refused",
            not wrong,
        )
    ]


def n4() -> list[Row]:
    found, prices = [], costs()
    for tables, devices, most in ((60, 8, 2.0), (856, 128, 60.0)):
        drawn = made_up_tables(tables, seed=7)
        cluster = tight(drawn, devices)
        begun = time.thread_time()
        plan = plan_tables(drawn, cluster, prices, seconds=0.85 * most)
        took = time.thread_time() - begun
        check_table_plan(drawn, cluster, prices, plan)
        found.append(
            Row(
                "N4",
                f"{tables} tables x {devices} devices in {most:g} s",
                f"{took:.2f} s of CPU time; {plan.planner}, {100 * plan.gap:.1f} % above the bound",
                took <= most,
            )
        )
    return found


def n5() -> list[Row]:
    free = msgspec.structs.replace(CONSTANTS.forward, latency=0.0, per_byte=0.0)
    sums = msgspec.structs.replace(CONSTANTS, per_width=0.0, forward=free, backward=free)
    ratios, proofs = [], 0
    with Worker() as worker:
        for tables, cluster in tasks(20):
            plan = plan_tables(tables, cluster, sums, method="table", seconds=2)
            parts, hosts = placed(tables, cluster, plan)
            problem = TableProblem(tables, cluster, sums)
            cost = additive(problem, parts)
            best, proved = solve_additive(problem, parts, hosts, seconds=3, worker=worker)
            proofs += proved
            ratios.append(largest_sum(cost, hosts) / largest_sum(cost, best))
    return [
        Row(
            "N5",
            "<= 2 % above the integer program on costs that are added up",
            f"mean {100 * (statistics.mean(ratios) - 1):.2f} %, worst {100 * (max(ratios) - 1):.2f} %; "
            f"{proofs} of {len(ratios)} proved best in 3 s",
            max(ratios) <= 1.02,
        )
    ]


def n6() -> list[Row]:
    found = measured_tasks()
    ratios = [sum(row["ours"]) / sum(row["table-wise"]) for row in found]
    split = [ratio for ratio in ratios if ratio != 1]
    gain = f"{100 * (1 - statistics.mean(split)):.1f} %" if split else "nothing"
    return [
        Row(
            "N6",
            "by columns never slower than without",
            f"{len(split)} of {len(ratios)} plans split tables, and gain {gain} as measured anew; worst "
            f"{max(ratios):.3f}",
            max(ratios) <= 1.0,
        )
    ]


def w1() -> list[Row]:
    tests = oracles("test_tables_judge")
    refused = 0
    for seed in range(2000):
        try:
            check_table_plan(tests.TABLES, tests.DEVICES, tests.COSTS, tests.damaged(seed))
        except JudgeError:
            refused += 1
    return [Row("W1", "2,000 damaged plans of tables are refused", f"{refused}", refused == 2000)]


def w2() -> list[Row]:
    refs = oracles("tables_references")
    equal = above = wrong = total = 0
    for seed in range(500):
        tables, cluster = refs.small_tables(seed, bytes=seed % 2 == 1)
        prices = refs.curved_costs(seed) if seed % 3 else CONSTANTS
        best = refs.brute_force(tables, cluster, prices, columns=False)
        if best is None:
            continue
        total += 1
        plan = plan_tables(tables, cluster, prices, method="table", seconds=1)
        equal += abs(plan.cost - best) <= 2
        above += plan.cost > best + 2
        wrong += plan.lower_bound > best + 2
    return [
        Row(
            "W2",
            "500 small cases: plans of tables equal exhaustive search, and no bound is above it",
            f"{equal} of {total} feasible equal, {above} above; {wrong} bounds above",
            equal == total and not wrong,
        )
    ]


def w3() -> list[Row]:
    took, ratios, moved = [], [], []
    for seed in range(10):
        tables = made_up_tables(60, seed=seed)
        cluster = tight(tables, 8, share=1.5)
        plan = plan_tables(tables, cluster, CONSTANTS, seconds=2)
        left = cluster.without([cluster.names[seed % 8]])
        begun = time.thread_time()
        again = plan_tables(tables, left, CONSTANTS, seconds=1.5, replaces=plan)
        took.append(time.thread_time() - begun)
        check_table_plan(tables, left, CONSTANTS, again, replaces=plan)
        ratios.append(again.cost / plan_tables(tables, left, CONSTANTS, seconds=2).cost)
        moved.append(again.moved_bytes / sum(4 * table.rows * table.dim for table in tables.tables))
    return [
        Row(
            "W3",
            "a lost device: 60 tables x 8 devices are planned anew within 2 s",
            f"{max(took):.2f} s at most; {statistics.mean(ratios):.3f} of a plan from nothing; "
            f"{100 * statistics.mean(moved):.0f} % of the bytes move",
            max(took) <= 2,
        )
    ]
