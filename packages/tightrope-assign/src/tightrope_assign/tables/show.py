"""A plan of tables for people: devices over time, what each holds, who sends whom pooled rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tightrope.core import format_bytes
from tightrope.core.units import format_time
from tightrope.draw import Bar, Lane
from tightrope_assign.page import device_page
from tightrope_assign.tables.problem import Part, TableProblem, table_problem
from tightrope_assign.values.cluster import Cluster
from tightrope_assign.values.costs import TableCosts
from tightrope_assign.values.tables import TablePlan, TableSet, by_device, shard_bytes


def _placement(
    tables: TableSet, cluster: Cluster, costs: TableCosts, plan: TablePlan
) -> tuple[TableProblem, Sequence[Part], Sequence[int]]:
    number = {table.name: at for at, table in enumerate(tables.tables)}
    position = {name: at for at, name in enumerate(cluster.names)}
    parts = [(number[s.table], s.start, s.stop) for s in plan.placed]
    return table_problem(tables, cluster, costs), parts, [position[s.device] for s in plan.placed]


def device_rows(
    tables: TableSet, cluster: Cluster, costs: TableCosts, plan: TablePlan
) -> list[dict[str, Any]]:
    """List what each device holds, and how long its lookups take."""
    problem, parts, hosts = _placement(tables, cluster, costs, plan)
    lookups, columns = problem.loads(parts, hosts)
    named = {table.name: table for table in tables.tables}
    return [
        {
            "device": device.name,
            "shards": [s.label if s.stop - s.start < named[s.table].dim else s.table for s in mine],
            "columns": int(columns[at]),
            "bytes": sum(shard_bytes(tables, named[s.table], s.stop - s.start) for s in mine),
            "limit": device.bytes or None,
            "busy_ns": round(float(lookups[at])),
        }
        for at, (device, mine) in enumerate(
            zip(cluster.devices, by_device(cluster, plan.placed).values(), strict=True)
        )
    ]


def table_page(tables: TableSet, cluster: Cluster, costs: TableCosts, plan: TablePlan) -> str:
    """Draw a page: lookups and exchanges of each device, then bytes per device, then who talks to whom."""
    rows = device_rows(tables, cluster, costs, plan)
    problem, parts, hosts = _placement(tables, cluster, costs, plan)
    columns = problem.loads(parts, hosts)[1]
    slowest = max(row["busy_ns"] for row in rows)
    ends = slowest + np.cumsum(problem.exchanges(columns))
    words = ("rows to their samples", "gradients back")
    lanes = []
    for row in rows:
        bars = [Bar(0, row["busy_ns"] / 1e6, "lookups", f"lookups: {format_time(row['busy_ns'])}")]
        for begin, end, what in zip((slowest, ends[0]), ends, words, strict=True):
            bars.append(Bar(begin / 1e6, end / 1e6, what, f"{what}: {format_time(end - begin)}"))
        lanes.append(Lane(row["device"], tuple(bars[: 3 if len(rows) > 1 else 1])))
    share = 4 * tables.batch / len(rows)
    talks = [
        [a["device"], b["device"], "2", format_bytes(share * (a["columns"] + b["columns"]))]
        for a in rows
        for b in rows
        if a is not b and a["columns"] + b["columns"]
    ][:2000]
    title = f"{tables.name[:80]} on {cluster.name[:80]}"
    return device_page(title, f"{tables.name} by {plan.planner}", lanes, "shards", rows, talks)
