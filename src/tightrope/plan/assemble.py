"""From a schedule to a plan: addresses, forecast, certificate."""

from importlib.metadata import version

from tightrope.core import (
    ALIGNMENT,
    Bytes,
    Certificate,
    Forecast,
    Graph,
    Limits,
    Machine,
    Plan,
    Schedule,
    Trace,
)
from tightrope.place import place
from tightrope.plan.bound import lower_bound
from tightrope.plan.clock import clock
from tightrope.plan.timeline import buffer_sizes, largest_sum, outside_sizes, timeline

_PLACE_SECONDS = 0.25


def assemble(
    graph: Graph,
    schedule: Schedule,
    *,
    budget: Bytes | None,
    machine: Machine | None = None,
    planner: str = "given",
    seed: int = 0,
    placed: bool = True,
) -> Plan:
    """Place the allocations of a schedule and forecast its bytes and time.

    Args:
        graph: what the schedule runs.
        schedule: valid for ``graph``.
        budget: total bytes asked for; once it fits, the placer goes on for a moment to waste less. None =
            as small as possible, and the plan's budget is what it needs.
        machine: named in the plan; its tiers and power give the time and energy of paging.
        planner: named in the plan.
        seed: of the placer.
        placed: whether to give addresses; without, the arena is the largest number of live bytes.

    Returns:
        A plan without reasons; its total may exceed the budget, see `Forecast.total`.
    """
    trace = timeline(graph, schedule)
    sizes = buffer_sizes(graph, trace)
    outside = tuple(b.storage >= 0 and graph.storages[b.storage].outside for b in trace.buffers)
    held = largest_sum(trace, outside_sizes(graph, trace))
    capacity = None if budget is None else max(0, budget - graph.persistent - held)
    inside = tuple(size * (not out) for size, out in zip(sizes, outside, strict=True))
    offsets = _offsets(graph, trace, sizes, outside, capacity=capacity, seed=seed) if placed else ()
    cost = clock(graph, schedule, machine)
    forecast = Forecast(
        persistent=graph.persistent,
        peak=largest_sum(trace, sizes),
        arena=max((o + size for o, size in zip(offsets, sizes, strict=True) if o >= 0), default=0)
        if placed
        else largest_sum(trace, inside),
        outside=held,
        ns=cost.ns,
        base_ns=graph.base_ns,
        joules=cost.joules,
        tiers=cost.tiers,
    )
    asked = forecast.total if budget is None else budget
    return Plan(
        fingerprint=graph.fingerprint,
        schedule=schedule,
        offsets=offsets,
        budget=asked,
        forecast=forecast,
        certificate=_certificate(graph, forecast, seed),
        limits=Limits(bytes=(asked,)),
        machine="host" if machine is None else machine.name,
        planner=planner,
        placed=placed,
    )


def _certificate(graph: Graph, forecast: Forecast, seed: int) -> Certificate:
    """State what needs no search: the single-op floor, and that every op runs at least once."""
    bound, witness = lower_bound(graph)
    return Certificate(
        lower_bound=bound,
        witness=witness,
        ns_bound=graph.base_ns,
        proved=forecast.ns == graph.base_ns,
        seed=seed,
        versions=(("tightrope", version("tightrope")),),
    )


def _offsets(
    graph: Graph,
    trace: Trace,
    sizes: tuple[Bytes, ...],
    outside: tuple[bool, ...],
    *,
    capacity: Bytes | None,
    seed: int,
) -> tuple[int, ...]:
    inside = [i for i, out in enumerate(outside) if not out]
    buffers = [(sizes[i], trace.buffers[i].start, trace.buffers[i].end) for i in inside]
    wanted = [
        graph.storages[s].alignment if (s := trace.buffers[i].storage) >= 0 else ALIGNMENT for i in inside
    ]
    alignments = wanted if any(a > ALIGNMENT for a in wanted) else None
    placement = place(buffers, capacity=capacity, seconds=_PLACE_SECONDS, seed=seed, alignments=alignments)
    if capacity is not None and placement.lower_bound < placement.peak <= capacity:
        lower = place(buffers, seconds=_PLACE_SECONDS, seed=seed, alignments=alignments)
        placement = min(placement, lower, key=lambda found: found.peak)
    offsets = [-1] * len(outside)
    for i, offset in zip(inside, placement.offsets, strict=True):
        offsets[i] = offset
    return tuple(offsets)
