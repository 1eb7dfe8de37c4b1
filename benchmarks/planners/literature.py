"""The literature's planners beside ours: the published table, plots, and two comparisons.

P6 compares with Checkmate's program wherever HiGHS closes it within 300 CPU-seconds, and with DTR over
training graphs. Live bytes are the budget, as in the papers; CPU seconds count processes started too.
The published figures are those of the Moccasin paper (ICML 2023), wall seconds on 16 cores.
"""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.planners.question import Question, Row, Settings, cpu_seconds
from tightrope.core import Graph, InfeasibleError, Limits, Schedule, TightropeError
from tightrope.formats import read_source
from tightrope.lower import walked
from tightrope.plan import PLANNERS, Options, solve, whole_bytes
from tightrope.plan.model import build
from tightrope.plan.options import Watch
from tightrope.plan.schedule import expand
from tightrope_planners.formats import poet_network, random_layered
from tightrope_planners.peers.checkmate import CheckmateKnobs, checkmate_pairs

PEERS: Final = (
    "greedy", "anneal", "moccasin", "checkmate-lp", "dtr", "rotor", "revolve", "sqrt", "treewidth",
)  # fmt: skip
PUBLISHED: Final = {
    ("random_layered_n250", 90): "0.9 (55 s)",
    ("random_layered_n250", 80): "4.9 (640 s)",
    ("fcn8_vgg_b32_train", 90): "0.0 (3.1 s)",
    ("fcn8_vgg_b32_train", 80): "0.1 (3.1 s)",
    ("resnet50_b256_train", 90): "0.2 (65 s)",
    ("resnet50_b256_train", 80): "0.3 (69 s)",
}
_TRAINING: Final = ("vgg16_cifar", "resnet18_cifar", "resnet50", "bert12")
_CAPTURED: Final = ("unet", "vgg16", "mobilenetv2")
_RANDOM: Final = "random_layered"
"""Published graphs that are no training steps: they do not count in the mean ratio."""
_CHECKMATE_SECONDS = 300.0


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per graph, budget and planner; draw one plot per graph of the table."""
    if settings.wants("P6"):
        yield from _checkmate(settings)
        yield from _dtr(settings)
    if settings.wants("table"):
        for name, graph in published(settings.data):
            rows = list(_table(name, graph, settings))
            yield from rows
            if not settings.quick:
                _plot(name, graph, settings.out)


@cache
def peak_of(graph: Graph) -> int:
    """Total bytes of the given order, live."""
    return whole_bytes(graph)


def published(data: Path | None) -> list[tuple[str, Graph]]:
    """Read the published graphs, smallest first."""
    files = sorted(Path(data).glob("*.json")) if data is not None else []
    graphs = [(file.stem.split("_w")[0], read_source(file).graph) for file in files]
    return sorted(graphs, key=lambda item: len(item[1].ops))


def ours(graph: Graph, budget: int, seeds: tuple[int, ...]) -> tuple[float | None, float]:
    """Plan with the default portfolio; return median TDI (None = not found) and CPU seconds."""
    found, spent = list[float](), list[float]()
    for seed in seeds:
        began = cpu_seconds()
        try:
            found.append(solve(graph, budget=budget, seed=seed, placed=False).forecast.tdi_percent)
        except InfeasibleError:
            found.append(math.inf)
        spent.append(cpu_seconds(began))
    middle = median(found)
    return None if middle == math.inf else middle, median(spent)


def theirs(graph: Graph, budget: int, schedule: Schedule) -> float | None:
    """Have the judge replay a schedule; TDI, or None where it takes more than the budget."""
    walk = walked(graph, schedule)
    fits = graph.persistent + walk.peak <= budget
    return 100 * (walk.ns / graph.base_ns - 1) if fits else None


def _checkmate(settings: Settings) -> Iterator[Row]:
    """Compare with Checkmate's program on graphs of at most 100 ops."""
    graphs = [(name, graph) for name, graph in published(settings.data) if len(graph.ops) <= 100]
    graphs += [(f"layered {n}", random_layered(n, seed=n)) for n in (30, 50, 70)]
    graphs += [(name, poet_network(name)) for name in ("linear", "vgg16_cifar")]
    for name, graph in graphs[: 3 if settings.quick else None]:
        for percent in (90, 80):
            budget = _budget(graph, percent)
            options = Options(watch=Watch(seconds=_CHECKMATE_SECONDS))
            began = cpu_seconds()
            answer = checkmate_pairs(
                build(graph), budget - graph.persistent, knobs=CheckmateKnobs(nodes=10**9), options=options
            )
            spent = cpu_seconds(began)
            best = theirs(graph, budget, expand(graph, answer.pairs))
            found, mine = ours(graph, budget, settings.seeds)
            comparable = answer.proved and best is not None
            equal = found is not None and best is not None and found <= best + 0.002
            yield {
                "bar": "P6", "graph": name, "ops": len(graph.ops), "budget %": percent,
                "checkmate": best, "proved": answer.proved, "its CPU s": spent,
                "ours": found, "CPU s": mine, "times less": spent / mine,
                "met": (equal and spent >= 20 * mine) if comparable else None,
            }  # fmt: skip


def _compared(settings: Settings) -> Iterator[tuple[str, Graph]]:
    """List the graphs for DTR: published ones, networks in closed form, and captures."""
    yield from published(settings.data)
    for name in _TRAINING[: 1 if settings.quick else None]:
        yield name, poet_network(name)
    for name in () if settings.quick else _CAPTURED:
        yield name, captured(name)


def captured(name: str) -> Graph:
    """Capture a net of the zoo and price it from a table, so that figures do not depend on this machine."""
    from benchmarks.zoo import build as build_net
    from tightrope.capture import capture_program
    from tightrope.cli.machines import find_machine
    from tightrope.price import price_graph

    case = build_net(name)
    return price_graph(capture_program(case.model, case.inputs)[0].graph, find_machine("laptop-16gb"))


def _dtr(settings: Settings) -> Iterator[Row]:
    """Compare with DTR at every tenth of the peak, and ten points below the least that it manages."""
    ratios, lower = list[float](), 0
    for name, graph in _compared(settings):
        for percent in range(90, 10, -10):
            other = _dtr_at(graph, percent)
            if other is None:
                continue
            found, spent = ours(graph, _budget(graph, percent), settings.seeds[:1])
            if other and found and 30 <= percent <= 80 and not name.startswith(_RANDOM):
                ratios.append(other / found)
            yield {
                "bar": "P6", "graph": name, "ops": len(graph.ops), "budget %": percent,
                "DTR": other, "ours": found, "CPU s": spent,
                "met": found is not None and found <= other + 1e-9,
            }  # fmt: skip
        least = min((p for p in range(95, 0, -5) if _dtr_at(graph, p) is not None), default=100)
        below = ours(graph, _budget(graph, least - 10), settings.seeds[:1])[0] if least > 10 else None
        lower += below is not None
        yield {
            "bar": "P6", "graph": name, "DTR down to %": least, "ours 10 points below, TDI %": below,
            "met": None,
        }  # fmt: skip
    ratio = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0
    yield {
        "bar": "P6", "pairs at 80..30 %": len(ratios), "geometric mean DTR / ours": ratio,
        "graphs 10 points lower": lower, "met": None if settings.quick else ratio >= 1.22 and lower >= 3,
    }  # fmt: skip


def _budget(graph: Graph, percent: int) -> int:
    return -(-peak_of(graph) * percent // 100)


def _dtr_at(graph: Graph, percent: int) -> float | None:
    budget = _budget(graph, percent)
    return theirs(graph, budget, PLANNERS["dtr"](graph, None, Limits(bytes=(budget,)), Options()))


def _table(name: str, graph: Graph, settings: Settings) -> Iterator[Row]:
    for percent in (90, 80, 70, 60, 50):
        budget = _budget(graph, percent)
        found, spent = ours(graph, budget, settings.seeds)
        figures: Row = {"auto": found, "CPU s": spent}
        for planner in PEERS:
            figures[planner], figures[f"{planner} s"] = peer(graph, budget, planner)
        yield {
            "bar": "table", "graph": name, "budget %": percent,
            "published": PUBLISHED.get((name, percent)), **figures,
        }  # fmt: skip


def peer(graph: Graph, budget: int, planner: str) -> tuple[float | str | None, float]:
    """Run one planner at most two minutes; TDI, None where it does not fit, or why it refuses."""
    began = cpu_seconds()
    options = Options(watch=Watch(seconds=120.0))
    try:
        schedule = PLANNERS[planner](graph, None, Limits(bytes=(budget,)), options)
    except TightropeError:
        return "refuses", cpu_seconds(began)
    return theirs(graph, budget, schedule), cpu_seconds(began)


def _plot(name: str, graph: Graph, out: Path) -> None:
    """Draw TDI against budget, one line per planner."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    percents = list(range(95, 15, -5))
    for planner in ("auto", *(p for p in PEERS if p not in ("moccasin", "checkmate-lp"))):
        points = []
        for percent in percents:
            budget = _budget(graph, percent)
            tdi = ours(graph, budget, (0,))[0] if planner == "auto" else peer(graph, budget, planner)[0]
            if isinstance(tdi, float):
                points.append((percent, tdi))
        if points:
            style = {"linewidth": 2.5, "color": "black"} if planner == "auto" else {"linewidth": 1.2}
            axes.plot(*zip(*points, strict=True), marker=".", label=planner, **style)
    axes.set(xlabel="budget, % of the given order's peak", ylabel="total duration increase, %", title=name)
    axes.set_yscale("symlog", linthresh=0.1)
    axes.invert_xaxis()
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"tdi_{name}.svg", bbox_inches="tight")
    pyplot.close(figure)


QUESTION = Question(("P6", "table"), "the literature's planners beside ours", run)
