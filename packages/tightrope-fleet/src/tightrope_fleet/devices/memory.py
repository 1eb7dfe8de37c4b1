"""Which kinds of devices have room for the training step, without and with a plan of its bytes.

A step that does not fit as it stands is planned under the kind's bytes; recomputation takes time, so a sample
takes longer there. Gradients are those of the step without a plan, bit for bit, so kinds may be mixed in a
round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core.errors import InfeasibleError
from tightrope.core.graph import Graph
from tightrope.core.units import Bytes
from tightrope.plan.api import plan, whole_bytes
from tightrope_fleet.devices.fleet import Devices, FleetProfile


@dataclass(frozen=True, slots=True)
class KindFit:
    """How a step fits one kind.

    Attributes:
        kind: its name.
        bytes: what the kind has.
        whole: what the step takes without a plan, as it was given or in the graph's order.
        planned: what it takes with one; None = nothing fits.
        factor: time over that without a plan; 0 = nothing fits.
    """

    kind: str
    bytes: Bytes
    whole: Bytes
    planned: Bytes | None
    factor: float


def fit_kinds(
    graph: Graph, profile: FleetProfile, *, whole: Bytes | None = None, seconds: float = 1.0
) -> tuple[KindFit, ...]:
    """Plan a step for every kind.

    Args:
        graph: of the step, with the time of every op.
        profile: of the kinds.
        whole: bytes that the step takes without a plan, where they were counted; None = those of the
            graph's order. An eager step takes more than a graph that frees gradients.
        seconds: of search per kind.
    """
    whole, fits = whole_bytes(graph) if whole is None else whole, []
    for kind in profile.kinds:
        if kind.bytes >= whole:
            fits.append(KindFit(kind.name, kind.bytes, whole, whole, 1.0))
            continue
        try:
            found = plan(graph, budget=kind.bytes, seconds=seconds).forecast
        except InfeasibleError:
            fits.append(KindFit(kind.name, kind.bytes, whole, None, 0.0))
            continue
        factor = found.ns / found.base_ns if found.base_ns else 1.0
        fits.append(KindFit(kind.name, kind.bytes, whole, found.total, factor))
    return tuple(fits)


def holding_factors(profile: FleetProfile, size: Bytes) -> tuple[float, ...]:
    """Tell which kinds hold the weights at all: 1 for those, 0 for others; whether a step fits needs a plan.

    Raises:
        InfeasibleError: no kind does.
    """
    factors = tuple(float(kind.bytes >= size) for kind in profile.kinds)
    if not any(factors):
        most = max(profile.kinds, key=lambda kind: kind.bytes)
        raise InfeasibleError(
            f"no-go: the model has {size} bytes, and training may take {most.bytes} on {most.name!r:.60}, "
            "the most of all kinds. Give a smaller model, or devices with more memory.",
            asked=most.bytes,
            lower_bound=size,
        )
    return factors


def able_share(devices: Devices, fits: Sequence[KindFit], *, planned: bool) -> float:
    """Share of devices that have room, with plans or without."""
    room = [fit.factor > 0 if planned else fit.bytes >= fit.whole for fit in fits]
    return float(sum(room[kind] for kind in devices.kind.tolist()) / len(devices.kind))
