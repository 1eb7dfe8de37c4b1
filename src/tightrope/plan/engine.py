"""Open the native search over a model."""

from tightrope.core import Bytes, Graph, Limits
from tightrope.lower import lower, simulate
from tightrope.native.solvers.solver import Solver, Tables
from tightrope.plan.model import Model
from tightrope.plan.schedule import base_schedule


def open_solver(model: Model) -> Solver:
    """Open a search that starts from the empty set.

    Raises:
        NativeError: the library is not there, and does not build or load.
    """
    rows = zip(model.need, model.again_need, model.again_ns, model.window, model.away, strict=True)
    writes = zip(model.over, model.again_over, model.part, strict=True)
    ops = tuple((*row[:3], *row[3], *row[4], *own) for row, own in zip(rows, writes, strict=True))

    storages = tuple(
        (size, producer, int(pinned), int(at_end))
        for size, producer, pinned, at_end in zip(
            model.size, model.producer, model.pinned, model.at_end, strict=True
        )
    )
    return Solver(Tables(ops, storages, model.reads, model.again_reads, model.again_creates))


def outside_peak(graph: Graph) -> Bytes:
    """Largest number of bytes that the base schedule holds outside the arena."""
    return simulate(lower(graph, base_schedule(graph))).outside


def live_limit(graph: Graph, limits: Limits) -> Bytes:
    """Bytes that the arena may hold: the limit without what the caller holds and what lives outside."""
    if not limits.bytes:
        return 2**62
    return max(0, limits.bytes[0] - graph.persistent - outside_peak(graph))
