"""Arena over live bytes on plans of the zoo, temporaries inside kernels included; and replay on a CPU."""

import gc
from collections.abc import Iterator

from benchmarks.spine import replayed
from benchmarks.spine.bar import Settings
from benchmarks.spine.nets import clean, fresh
from benchmarks.zoo.case import Scale
from tightrope.capture.api import capture_program, measured
from tightrope.core import Graph, InfeasibleError, Plan
from tightrope.lower import charged_sizes, lower, outside_flags, timeline
from tightrope.place import place
from tightrope.plan import solve, whole_bytes
from tightrope.run.ledger.accounts import accounts

NETS = ("gpt2", "bert", "vit", "resnet18", "unet", "densenet121", "mobilenetv2", "moe")
SHARES = (0.8, 0.7, 0.6, 0.5, 0.4)


def graph_of(name: str, scale: Scale) -> Graph:
    """Capture a net and measure its ops here, allocations inside kernels included."""
    case = fresh(name, Settings(scale, False, False, ()))
    program, real = capture_program(case.model, case.inputs)
    found = measured(program, real, accounts().allocator).graph
    del case, program, real
    clean()
    gc.collect()
    return found


def plans(name: str, scale: Scale) -> Iterator[tuple[float, Graph, Plan]]:
    """Plan one net at every share of its peak that is feasible."""
    graph = graph_of(name, scale)
    whole = whole_bytes(graph)
    for share in SHARES:
        try:
            yield (
                share,
                graph,
                solve(graph, budget=int(share * (whole - graph.persistent)) + graph.persistent),
            )
        except InfeasibleError:
            continue


def arena_ratio(graph: Graph, plan: Plan) -> tuple[float, float, int]:
    """Return arena over live bytes: of the plan as it is, placed again as low as possible; and buffers."""
    executable = lower(graph, plan)
    rows = zip(
        charged_sizes(executable), timeline(executable).buffers, outside_flags(executable), strict=True
    )
    inside = [(size, buffer.start, buffer.end) for size, buffer, outside in rows if not outside]
    again = place(inside, seconds=1.0)
    bound = max(again.lower_bound, 1)
    return plan.forecast.arena / bound, again.peak / bound, len(inside)


def replays(names: tuple[str, ...], scale: Scale, *, quick: bool) -> Iterator[dict[str, object]]:
    """Train nets with and without planned addresses; see the spine's own question for the columns."""
    settings = Settings(scale, quick, False, ())
    for name in names:
        yield from replayed.rows(name, settings)
