"""Joint recomputation and paging on POET's networks, beside each alone and beside the program.

``recompute``, ``paging`` and ``joint`` are energies in J found by the search. POET's mixed-integer program
on HiGHS is asked for anything cheaper than 0.999 of ``joint``: ``none`` = proved that there is nothing,
``open`` = not settled in its time, a figure = the bar is missed. The budget is live bytes, as a share
of the peak of the base order; the time limit is 1.5 times that of the base order. All sets are judged.
"""

from collections.abc import Iterator
from importlib.resources import files

from benchmarks.planners.question import Question, Row, Settings, cpu_seconds
from tightrope.core import Graph, Limits, Machine
from tightrope.lower import walked
from tightrope.plan import base_schedule, lower_bound
from tightrope.plan.options import Options
from tightrope.plan.paging.model import PagedSet
from tightrope.plan.paging.search import PagingKnobs, paged_schedule, search_paged
from tightrope_planners.formats.poet import poet_network
from tightrope_planners.peers.poet import PoetKnobs, solve_poet

NETWORKS = ("linear", "vgg16_cifar", "resnet18_cifar")
LARGE = ("resnet18", "transformer", "resnet50", "bert12")
MACHINES = ("poet-cortex-m4f", "poet-raspberry-pi")
SLOWER = 1.5
WITHIN = 0.999
PROGRAM_SECONDS, FEW_SECONDS = 120.0, 5.0
_WAYS = {"recompute": (True, False), "paging": (False, True), "joint": (True, True)}


def profile(name: str) -> Machine:
    """Load a machine that comes with the package."""
    return Machine.parse((files("tightrope") / "machines" / f"{name}.toml").read_text(encoding="utf-8"))


def budgets(graph: Graph, peak: int) -> list[float]:
    """Three shares of the peak between what the largest op needs and all."""
    floor = (lower_bound(graph)[0] - graph.persistent) / peak
    return [round(floor + part * (1 - floor), 3) for part in (0.8, 0.5, 0.2)]


def run(settings: Settings) -> Iterator[Row]:
    if not settings.wants("P8"):
        return
    names = NETWORKS[:2] if settings.quick else (*NETWORKS, *LARGE)
    for name in names:
        for machine in map(profile, MACHINES):
            graph = poet_network(name, flops_per_second=machine.flops["matmul"])
            base = walked(graph, base_schedule(graph), machine)
            for share in budgets(graph, base.peak):
                limit = graph.persistent + int(share * base.peak)
                yield _row(name, graph, machine, Limits((limit,), SLOWER * base.ns * 1e-9), share, settings)


def _row(name: str, graph: Graph, machine: Machine, limits: Limits, share: float, settings: Settings) -> Row:
    seed, spent, found = settings.seeds[0], 0.0, dict[str, float | None]()
    for way, (recompute, paging) in _WAYS.items():
        start = cpu_seconds()
        knobs = PagingKnobs(objective="joules", recompute=recompute, paging=paging)
        chosen = search_paged(graph, machine, limits, knobs=knobs, options=Options(seed=seed))
        found[way] = _joules(graph, machine, limits, chosen)
        spent = cpu_seconds(start)
    row: Row = {
        "bar": "P8",
        "net": name,
        "n": len(graph.ops),
        "machine": machine.name,
        "budget": share,
        **found,
    }
    row["joint_s"], row["cheaper"], start = round(spent, 2), "not asked", cpu_seconds()
    if name in NETWORKS:
        row["cheaper"] = _cheaper(graph, machine, limits, found["joint"], settings)
    row["program_s"] = round(cpu_seconds(start), 1)
    return row | {"met": _met(found, row["cheaper"], spent)}


def _cheaper(
    graph: Graph, machine: Machine, limits: Limits, joint: float | None, settings: Settings
) -> str | float:
    """Ask the program for a set that costs less than the bar allows."""
    seconds = FEW_SECONDS if settings.quick else PROGRAM_SECONDS
    below = None if joint is None else WITHIN * joint
    if below is not None and below <= machine.watts * graph.base_ns * 1e-9:
        return "none"  # less than running every op once
    answer = solve_poet(graph, machine, limits, knobs=PoetKnobs(seconds=seconds, below=below))
    if answer.chosen is None:
        return "none" if answer.proved else "open"
    return _joules(graph, machine, limits, answer.chosen) or 0.0


def _joules(graph: Graph, machine: Machine, limits: Limits, chosen: PagedSet | None) -> float | None:
    if chosen is None:
        return None
    walk = walked(graph, paged_schedule(graph, machine, chosen), machine)
    assert graph.persistent + walk.peak <= limits.bytes[0]
    assert limits.seconds is not None
    assert walk.ns <= limits.seconds * 1e9
    return walk.joules


def _met(found: dict[str, float | None], cheaper: str | float, spent: float) -> bool:
    alone = [value for way in ("recompute", "paging") if (value := found[way]) is not None]
    joint = found["joint"]
    if joint is None:
        return not alone and cheaper in ("none", "not asked")
    return joint <= min(alone, default=joint) and isinstance(cheaper, str) and spent <= 10


QUESTION = Question(("P8",), "P8: energy of joint recomputation and paging on POET's networks", run)
