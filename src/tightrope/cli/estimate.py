"""`tightrope estimate`: will it fit? Capture on shapes alone and look at the peak."""

from typing import Any

from tightrope.cli.target import captured
from tightrope.core import Buffer, Graph, Machine, parse_bytes
from tightrope.lower import lower, timeline
from tightrope.plan import base_schedule, lower_bound
from tightrope.price import price_graph

_NUM_SHOWN = 20


def estimate_step(target: str, budget: str | None, machine: Machine) -> dict[str, Any]:
    """Size the step of ``FILE.py:FUNCTION`` without running it.

    Args:
        target: what to capture.
        budget: bytes to fit in, or a share of what the step needs; None = the machine's memory.
        machine: whose memory and rates count.

    Returns:
        Plain values: ``fits``, bytes of each part, the smallest bytes any plan may need, and the
        storages alive at the peak.

    Raises:
        TightropeError: the step cannot be captured, or the budget cannot be read.
    """
    if budget is not None:
        parse_bytes(budget, whole=1)
    return describe(price_graph(captured(target)[0].graph, machine), budget, machine)


def describe(graph: Graph, budget: str | None, machine: Machine) -> dict[str, Any]:
    """Say whether the given order of a graph fits, and what is alive at its peak."""
    trace = timeline(lower(graph, base_schedule(graph), machine))
    profile = trace.profile()
    peak = max(profile, default=0)
    at = profile.index(peak) if profile else 0
    bound, witness = lower_bound(graph)
    total = graph.persistent + peak
    limit = machine.tiers[0].bytes if budget is None else parse_bytes(budget, whole=total)
    alive = [buffer for buffer in trace.buffers if buffer.start <= at < buffer.end]
    alive.sort(key=lambda buffer: -buffer.bytes)
    return {
        "fits": total <= limit,
        "a_plan_may_fit": bound <= limit,
        "limit_bytes": limit,
        "machine": machine.name,
        "total_bytes": total,
        "persistent_bytes": graph.persistent,
        "peak_bytes": peak,
        "lower_bound_bytes": bound,
        "lower_bound_op": graph.ops[witness].describe() if witness >= 0 else "",
        "estimated_seconds": graph.base_ns / 1e9,
        "num_ops": len(graph.ops),
        "note": "tensor bytes are exact; the kernels' own work space is not included until ops are measured",
        "num_alive_at_peak": len(alive),
        "alive_at_peak": _alive(graph, alive[:_NUM_SHOWN]),
    }


def _alive(graph: Graph, buffers: list[Buffer]) -> list[dict[str, Any]]:
    maker = {storage: op for op in graph.ops for storage in op.creates}
    rows = []
    for buffer in buffers:
        row = {"bytes": buffer.bytes, "what": "temporary", "module": "", "tensor": "", "source": ""}
        if buffer.storage >= 0:
            found = graph.storages[buffer.storage]
            row |= {"what": str(found.kind), "module": found.module, "tensor": found.label}
            row |= {"source": maker[found.id].source}
        rows.append(row)
    return rows
