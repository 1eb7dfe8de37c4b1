"""S11: what ``estimate`` says from shapes alone, against what the captured graph is seen to use.

    estimate     peak of the given order, sizes from fake tensors, nothing run
    temporaries  peak of the measured graph with its kernels' temporaries, minus without
    observed     live peak of the captured graph, run without recomputation

The residual, observed - temporaries - estimate, is zero when the estimate is exact.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from benchmarks._measure import bits
from benchmarks.spine.bar import TEN, Bar, Column, Row, Settings, Verdict, count
from benchmarks.spine.nets import UNLIMITED, fresh, planned
from tightrope.capture.api import capture_program
from tightrope.core import Bytes, Graph, Op
from tightrope.lower import lower, peak_bytes
from tightrope.plan import base_schedule


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Estimate one net, then run it."""
    case = fresh(name, settings)
    estimate = _peak(capture_program(case.model, case.inputs)[0].graph)
    del case
    with planned(name, settings, lambda _: UNLIMITED) as net:
        bits(net.loop, num_steps=2)
        seen, graph = net.report.observed_peak, net.graph
    temporaries = _peak(graph) - _peak(_without_temporaries(graph))
    yield {
        "net": name,
        "estimate": estimate,
        "temporaries": temporaries,
        "observed": seen,
        "residual": seen - temporaries - estimate,
    }


def _peak(graph: Graph) -> Bytes:
    return peak_bytes(lower(graph, base_schedule(graph)))


def _without_temporaries(graph: Graph) -> Graph:
    def bare(op: Op) -> Op:
        return replace(op, allocations=tuple(a for a in op.allocations if a.storage >= 0))

    return replace(graph, ops=tuple(map(bare, graph.ops)), variants=tuple(map(bare, graph.variants)))


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Every residual is zero."""
    del settings
    exact = [row["residual"] == 0 for row in found]
    return [Verdict("S11", all(exact) and bool(exact), f"{count(exact)} nets equal to the byte")]


BAR = Bar(
    ids=("S11",),
    title="Estimated peak (shapes alone) and observed peak of the captured graph, in bytes",
    columns=(
        Column("net", "net", 18),
        Column("estimate", "estimate", 13, lambda value: f"{value:,}"),
        Column("temporaries", "temporaries", 13, lambda value: f"{value:,}"),
        Column("observed", "observed", 13, lambda value: f"{value:,}"),
        Column("residual", "residual", 10, lambda value: f"{value:,}"),
    ),
    cases=lambda settings: settings.choose(*TEN),
    rows=rows,
    verdicts=verdicts,
)
