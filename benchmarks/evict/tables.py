"""What `python -m benchmarks evict --simulated` prints."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.evict.simulated import Point


def print_tables(console: Console, result: dict[str, Any], points: Sequence[Point]) -> None:
    """Print the tables, then one line per answer with its worst case."""
    _curves(console, points)
    _totals(console, result["totals"])
    _ablations(console, result["ablations"])
    _lowest(console, result["lowest"])
    for what, found in result["peers"].items():
        console.print(
            f"coop against dtr and dte ({what} seconds): {found['compared']} points where both finish, "
            f"{found['strictly_less']} less, {len(found['worse'])} more; worst: {_worst(found['worst'])}; "
            f"only coop finishes at {found['only_coop_finishes']}, only the other at "
            f"{found['only_peer_finishes'] or 0}",
            soft_wrap=True,
        )
    for policy, times in result["search"].items():
        console.print(
            f"search at 2,000 pieces, {policy}: {times['us_per_eviction']:.1f} us per eviction, "
            f"{times['us_per_request']:.1f} us per request, longest {times['us_per_request_longest']:.1f}",
            soft_wrap=True,
        )
    for policy, found in result["monotonicity"].items():
        console.print(
            f"not monotone on the 5 % grid, {policy}: fails where the next lower ratio does not: "
            f"{found['feasibility']}; recomputes more than there: {found['seconds']} of {found['pairs']}; "
            f"worst: {_worst(found['worst'])}",
            soft_wrap=True,
        )


def _worst(row: Sequence[Any] | None) -> str:
    """Print a log, a ratio, perhaps a policy, and two numbers of seconds."""
    if row is None:
        return "none"
    log, ratio, *policy, seconds, other = row
    beside = f" ({policy[0]})" if policy else ""
    return f"{log} at {ratio} %{beside}: {seconds:.5f} s against {other:.5f} s"


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title)
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left", no_wrap=True)
    return table


def _curves(console: Console, points: Sequence[Point]) -> None:
    found = {(p.log, p.policy, p.ratio): p for p in points}
    ratios, policies = (list(dict.fromkeys(column)) for column in _columns(points))
    title = "recomputed + moved seconds over operator seconds, % (- = does not finish)"
    table = _table(title, "log, policy", *(f"{ratio} %" for ratio in ratios), "frag %")
    for log in dict.fromkeys(p.log for p in points):
        for policy in policies:
            row = [found[log, policy, ratio] for ratio in ratios]
            cells = (f"{100 * p.overhead:.2f}" if p.finished else "-" for p in row)
            table.add_row(f"{log}, {policy}", *cells, _fragmentation(row))
    console.print(table)


def _columns(points: Sequence[Point]) -> tuple[list[Any], list[Any]]:
    return [p.ratio for p in points], [p.policy for p in points]


def _fragmentation(points: Sequence[Point]) -> str:
    shares = [p.fragmentation for p in points if p.finished and p.evictions]
    return f"{100 * mean(shares):.1f}" if shares else "-"


def _totals(console: Console, totals: dict[str, Any]) -> None:
    table = _table(
        f"over the {totals['common']} points that all policies finish",
        *("policy", "recomputed s", "moved s", "frag %", "us/eviction", "finishes"),
    )
    for policy, row in totals["policies"].items():
        table.add_row(
            *(policy, f"{row['again_s']:.4f}", f"{row['moved_s']:.4f}", f"{100 * row['fragmentation']:.1f}"),
            *(f"{row['search_us']:.1f}", f"{row['finishes']} of {row['of']}"),
        )
    console.print(table)


def _ablations(console: Console, found: dict[str, Any]) -> None:
    table = _table(
        "variants, where both finish",
        *("variant", "against", "finishes", "seconds x", "worst x", "frag %", "its"),
    )
    for name, row in found.items():
        table.add_row(
            *(name, row["against"].removeprefix("coop_as_"), f"{row['finishes']}/{row['baseline_finishes']}"),
            *(f"{row['seconds']:.2f}", f"{row['worst']:.2f}"),
            *(f"{100 * row['fragmentation']:.1f}", f"{100 * row['baseline_fragmentation']:.1f}"),
        )
    console.print(table)


def _lowest(console: Console, found: dict[str, dict[str, int | None]]) -> None:
    policies = list(next(iter(found.values()))) if found else []
    table = _table("lowest ratio that finishes, %", "log", *policies)
    for log, ratios in found.items():
        table.add_row(log, *("-" if one is None else str(one) for one in ratios.values()))
    console.print(table)
