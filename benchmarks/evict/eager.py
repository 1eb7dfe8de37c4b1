"""Eager loops under eviction: equal bits, bytes of the arena, seconds that ran again, the interception.

    python -m benchmarks evict [--nets resnet50,tree_lstm] [--policies coop,dtr,dte] [--steps 2] [--svg FILE]

Per net: training steps with SGD whose momenta are there, first without a limit worth the name, which gives
the peak, then under each policy at falling shares of that peak until a budget is refused or ``--lowest`` is
reached. What ran again is counted by the least time of each op so far, as a share of all ops' time: a run is
given up where that passes ``--most-again``. Bits are those of losses, weights, buffers, the last gradients
and the random state. Interception is measured alone, on an op of a few numbers, as CPU time of the thread;
*watch* is that, times the ops, beside the time of all ops.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from time import thread_time_ns
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tightrope
from benchmarks.evict.nets import NETS, Draw, trained
from benchmarks.zoo import REGISTRY
from tightrope.run.evict.context import Eviction, evict

RATIOS = (90, 80, 70, 60, 50, 40, 30, 20, 10)
_ROUNDS = 4000
_PEERS = ("dtr", "dte")
Row = dict[str, Any]


class Begun(NamedTuple):
    """A net whose optimizer has its state."""

    model: torch.nn.Module
    batch: Draw
    optimizer: torch.optim.Optimizer


def begun(name: str, scale: Any) -> Begun:
    """Build a net and train its first step, which makes the momenta."""
    net = trained(name, scale)
    found = Begun(net.model, net.batch, torch.optim.SGD(net.model.parameters(), 0.01, momentum=0.9))
    train(found, 1)
    found.optimizer.zero_grad()
    return found


def train(net: Begun, steps: int) -> list[Tensor]:
    """Train a net on; return all that its steps change."""
    torch.manual_seed(5)
    losses, optimizer = [], net.optimizer
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net.model(*net.batch())
        loss.backward()
        losses.append(loss.detach().clone())
        optimizer.step()
        del loss
    gradients = [one.grad for one in net.model.parameters() if one.grad is not None]
    return [*losses, *net.model.state_dict().values(), *gradients, torch.get_rng_state()]


def point(
    name: str, scale: Any, steps: int, budget: int, policy: str, most_again: float | None = None
) -> tuple[list[Tensor], Eviction]:
    """Train under a budget; weights and momenta are made before and lie beside it.

    Raises:
        OutOfBudgetError: that is not enough.
    """
    net = begun(name, scale)
    with evict(budget, policy=policy, most_again=most_again) as eviction:
        found = train(net, steps)
    return found, eviction


def interception() -> tuple[float, float]:
    """Measure an op on 16 numbers without and with interception, in us of CPU time."""
    a, b = torch.ones(16), torch.ones(16)
    plain = _each(lambda: torch.add(a, b))
    with evict("64MiB"):
        return plain, _each(lambda: torch.add(a, b))


def _each(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        start = thread_time_ns()
        for _ in range(_ROUNDS):
            call()
        best = min(best, (thread_time_ns() - start) / _ROUNDS / 1e3)
    return best


def rows(name: str, options: argparse.Namespace) -> list[Row]:
    """Measure a net under every policy, at falling ratios until one is refused."""
    expected = train(begun(name, options.scale), options.steps)
    _, free = point(name, options.scale, options.steps, 2**34, "coop")
    peak, found = free.statistics().high_water, list[Row]()
    for policy in options.policies.split(","):
        for ratio in (one for one in RATIOS if one >= options.lowest):
            row: Row = {"net": name, "policy": policy, "peak": peak, "ratio": ratio}
            try:
                after, eviction = point(
                    name, options.scale, options.steps, peak * ratio // 100, policy, options.most_again
                )
            except tightrope.OutOfBudgetError as error:
                found.append(row | {"refused": str(error)})
                break
            now = eviction.statistics()
            found.append(
                row
                | {
                    "equal": all(torch.equal(a, b) for a, b in zip(expected, after, strict=True)),
                    "high_water": now.high_water / peak,
                    "within": now.high_water <= peak * ratio // 100,
                    "again": eviction.recomputed_ns / max(1, eviction.operator_ns),
                    "ran_again": eviction.num_recomputed,
                    "ops": eviction.num_ops,
                    "operator_ns": eviction.operator_ns,
                    "evictions": now.evictions,
                    "fragmentation": now.fragmentation,
                    "searches": now.searches,
                    "search_us": now.search_ns / max(1, now.evicting) / 1e3,
                }
            )
    return found


def compared(found: Sequence[Row]) -> Row:
    """Compare the first policy with its peers at every net and ratio where both finish."""
    first = found[0]["policy"]
    done = {(row["net"], row["policy"], row["ratio"]): row["again"] for row in found if "again" in row}
    result: Row = {}
    for peer in dict.fromkeys(row["policy"] for row in found if row["policy"] in _PEERS):
        pairs = [
            (again, done[net, peer, ratio])
            for (net, policy, ratio), again in done.items()
            if policy == first and (net, peer, ratio) in done
        ]
        alone = sum((net, peer, ratio) not in done for net, policy, ratio in done if policy == first)
        other = sum((net, first, ratio) not in done for net, policy, ratio in done if policy == peer)
        result[peer] = {
            "points": len(pairs),
            "not_more": sum(mine <= theirs for mine, theirs in pairs),
            "less": sum(mine < theirs for mine, theirs in pairs),
            "worst": max((mine - theirs for mine, theirs in pairs), default=0.0),
            "only_first": alone,
            "only_peer": other,
        }
    return result


def draw(found: Sequence[Row], path: Path) -> None:
    """Draw what ran again against the ratio, one small picture per net.

    Raises:
        TightropeError: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise tightrope.TightropeError("--svg draws with matplotlib: pip install matplotlib.") from error
    nets = list(dict.fromkeys(row["net"] for row in found))
    columns = min(4, len(nets))
    style: Any = {"svg.hashsalt": "tightrope", "svg.fonttype": "none", "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(3 * columns, 2.6 * -(-len(nets) // columns)), layout="constrained")
        grid = figure.subplots(-(-len(nets) // columns), columns, squeeze=False)
        for axes in grid.flat[len(nets) :]:
            axes.set_visible(False)
        for net, axes in zip(nets, grid.flat, strict=False):
            for policy in dict.fromkeys(row["policy"] for row in found):
                mine = [
                    row for row in found if (row["net"], row["policy"]) == (net, policy) and "again" in row
                ]
                axes.plot(
                    [row["ratio"] for row in mine],
                    [100 * row["again"] for row in mine],
                    marker="o",
                    label=policy,
                )
            axes.set_title(net)
            axes.set_xlim(100, 0)
            axes.set_ylim(0)
            axes.grid(visible=True, alpha=0.3)
        figure.supxlabel("arena, % of the peak without a limit")
        figure.supylabel("ran again, % of all ops' time")
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(arguments: list[str]) -> int:
    """Print one table per run; 1 where a result differs from eager or a budget was exceeded."""
    options = _options(arguments)
    torch.set_num_threads(1)
    console, wrong = Console(width=132), 0
    plain, watched = interception()
    console.print(
        f"an op on 16 numbers: {plain:.2f} us, intercepted {watched:.2f} us: {watched - plain:.2f} us more"
    )
    table = Table("net", "policy", "peak MiB", "ratio %", "bits", "high water %", "again % of time")
    for title in ("ran again", "of ops", "evictions", "free %", "us/search", "watch %"):
        table.add_column(title, justify="right")
    names = net_names(options.nets)
    found = _of_other_nets(options.json, names)
    for row in found:
        table.add_row(*_cells(row))
    for name in names:
        for row in rows(name, options):
            if "ops" in row:
                row["watched"] = (watched - plain) * 1e3 * row["ops"] / row["operator_ns"]
            found.append(row)
            table.add_row(*_cells(row))
            wrong += "again" in row and not (row["equal"] and row["within"])
        console.print(f"{name} done")
        if options.json is not None:
            options.json.write_text(json.dumps({"rows": found, "compared": compared(found)}, indent=1))
    console.print(table)
    for policy in dict.fromkeys(row["policy"] for row in found):
        mine = [row for row in found if row["policy"] == policy and "again" in row]
        free = [(row["fragmentation"], row["searches"]) for row in mine if row["searches"]]
        if free:
            searches = sum(count for _, count in free)
            console.print(
                f"{policy}: {len(mine)} points finish, bits equal at {sum(row['equal'] for row in mine)}, "
                f"within the budget at {sum(row['within'] for row in mine)}; free at an eviction "
                f"{100 * fmean(share for share, _ in free):.1f} % in the mean of points, "
                f"{100 * sum(share * count for share, count in free) / searches:.1f} % of all {searches}"
            )
    sides = compared(found)
    for peer, side in sides.items():
        console.print(
            f"{found[0]['policy']} beside {peer}: of {side['points']} points no more time again at "
            f"{side['not_more']}, less at {side['less']}; alone it finishes {side['only_first']}, "
            f"{peer} alone {side['only_peer']}"
        )
    if options.svg is not None:
        draw(found, options.svg)
    return int(wrong > 0)


def _of_other_nets(path: Path | None, names: Sequence[str]) -> list[Row]:
    """Read the rows of nets that an earlier call measured: a long comparison may take several calls."""
    if path is None or not path.exists():
        return []
    return [row for row in json.loads(path.read_text())["rows"] if row["net"] not in names]


def _cells(row: Row) -> list[str]:
    start = [row["net"], row["policy"], f"{row['peak'] / 2**20:.1f}", str(row["ratio"])]
    if "again" not in row:
        return [*start, "refused"]
    return [
        *start,
        "equal" if row["equal"] else "DIFFER",
        f"{100 * row['high_water']:.1f}",
        f"{100 * row['again']:.1f}",
        *(str(row[key]) for key in ("ran_again", "ops", "evictions")),
        f"{100 * row['fragmentation']:.1f}",
        f"{row['search_us']:.1f}",
        f"{100 * row['watched']:.1f}",
    ]


def net_names(nets: str) -> list[str]:
    """List the nets asked for.

    Raises:
        TightropeError: one does not exist.
    """
    names = list(NETS) if nets == "all" else nets.split(",")
    for name in names:
        if name not in NETS and name not in REGISTRY:
            known = ", ".join(dict.fromkeys((*NETS, *REGISTRY)))
            raise tightrope.TightropeError(f"--nets: no net is called {name!r}; there are: {known}.")
    return names


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict")
    parser.add_argument("--nets", default="all", help="any of the zoo, or: " + ", ".join(NETS))
    parser.add_argument("--scale", default="bench", choices=("test", "bench"))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--policies", default="coop,dtr,dte")
    parser.add_argument("--lowest", type=int, default=10, help="smallest share of the peak, in percent")
    parser.add_argument(
        "--most-again", type=float, default=3.0, help="give up where this many times the ops' time ran again"
    )
    parser.add_argument("--json", type=Path, help="where the figures go; rows of other nets in it stay")
    parser.add_argument("--svg", type=Path, help="draw the curves into this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
