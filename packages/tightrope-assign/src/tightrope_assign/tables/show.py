"""A plan of tables for people: devices over time, what each holds, who sends whom pooled rows."""

from itertools import islice
from typing import Any

import numpy as np

from tightrope.core import format_bytes
from tightrope.core.units import format_time
from tightrope_assign.page import device_page
from tightrope_assign.tables.problem import TableProblem
from tightrope_assign.values.cluster import Cluster
from tightrope_assign.values.costs import TableCosts
from tightrope_assign.values.tables import TablePlan, TableSet, by_device, shard_bytes
from tightrope_shared.draw import Bar, Lane

_MOST_ROWS = 2000


def device_rows(
    tables: TableSet, cluster: Cluster, costs: TableCosts, plan: TablePlan
) -> list[dict[str, Any]]:
    """List what each device holds, and how long its lookups take."""
    problem, named = TableProblem(tables, cluster, costs), {table.name: table for table in tables.tables}
    homes, held = problem.homes(plan), by_device(cluster, plan.placed)
    lookups, columns = problem.loads(list(homes), list(homes.values()))
    return [
        {
            "device": device.name,
            "shards": [s.label if s.stop - s.start < named[s.table].dim else s.table for s in mine],
            "columns": int(columns[at]),
            "bytes": sum(shard_bytes(tables, named[s.table], s.stop - s.start) for s in mine),
            "limit": device.bytes or None,
            "busy_ns": round(float(lookups[at])),
        }
        for at, (device, mine) in enumerate(zip(cluster.devices, held.values(), strict=True))
    ]


def table_page(tables: TableSet, cluster: Cluster, costs: TableCosts, plan: TablePlan) -> str:
    """Draw a page: lookups and exchanges of each device, then bytes per device, then who talks to whom."""
    rows, lanes = device_rows(tables, cluster, costs, plan), []
    exchanges = TableProblem(tables, cluster, costs).exchanges(np.array([row["columns"] for row in rows]))
    slowest = max(row["busy_ns"] for row in rows)
    first, second = (slowest + np.cumsum(exchanges)).tolist()
    for row in rows:
        spans = [(0, row["busy_ns"], "lookups")]
        if len(rows) > 1:
            spans += [(slowest, first, "rows to their samples"), (first, second, "gradients back")]
        bars = (Bar(a / 1e6, b / 1e6, what, f"{what}: {format_time(b - a)}") for a, b, what in spans)
        lanes.append(Lane(row["device"], tuple(bars)))
    share = 4 * tables.batch / len(rows)
    talks = (
        [a["device"], b["device"], "2", format_bytes(share * (a["columns"] + b["columns"]))]
        for a in rows
        for b in rows
        if a is not b and a["columns"] + b["columns"]
    )
    title = f"{tables.name[:80]} on {cluster.name[:80]}"
    drawing = f"{tables.name} by {plan.planner}"
    return device_page(title, drawing, lanes, "shards", rows, list(islice(talks, _MOST_ROWS)))
