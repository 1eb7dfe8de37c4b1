"""From a schedule to a plan: addresses, forecast, certificate."""

from collections.abc import Sequence

from tightrope.core import (
    Bytes,
    Certificate,
    Executable,
    Forecast,
    Graph,
    Limits,
    Machine,
    Offset,
    Plan,
    Schedule,
    fitted,
)
from tightrope.core.version import VERSION
from tightrope.lower import (
    charged_sizes,
    largest_sum,
    lower,
    outside_flags,
    place_at,
    planned,
    simulate,
    timeline,
)
from tightrope.place import place
from tightrope.plan.bound import lower_bound

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
    offsets: Sequence[Offset] | None = None,
    effort: float = 1.0,
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
        offsets: the addresses; None = let the placer find some.
        effort: factor on that of the placer.

    Returns:
        A plan without reasons; its total may exceed the budget, see `Forecast.total`.
    """
    if machine is not None:
        graph = fitted(graph, machine.tiers[0].alignment)
    executable = lower(graph, schedule, machine)
    if offsets is not None:
        executable = place_at(executable, offsets)
    elif placed:
        room = None if budget is None else budget - graph.persistent
        executable = placed_within(executable, room, seed, effort=effort)
    figures = simulate(executable, machine)
    forecast = Forecast(
        persistent=graph.persistent,
        peak=figures.peak,
        arena=figures.arena,
        outside=figures.outside,
        ns=figures.ns,
        base_ns=graph.base_ns,
        joules=figures.joules,
        tiers=figures.tiers,
    )
    asked = forecast.total if budget is None else budget
    return Plan(
        fingerprint=graph.fingerprint,
        schedule=schedule,
        offsets=tuple(item.offset for item in planned(executable)) if placed else (),
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
        versions=(("tightrope", VERSION),),
    )


def placed_within(
    executable: Executable, room: Bytes | None, seed: int, *, effort: float = 1.0
) -> Executable:
    """Give every allocation of an arena its address.

    Args:
        executable: without addresses.
        room: bytes for the arena and what lies outside; they may not be enough. None = as few as possible.
        seed: of the placer.
        effort: factor on that of the placer.
    """
    trace, sizes, out = timeline(executable), charged_sizes(executable), outside_flags(executable)
    held = largest_sum(trace, tuple(size * outside for size, outside in zip(sizes, out, strict=True)))
    capacity = None if room is None else max(0, room - held)
    inside = [i for i, outside in enumerate(out) if not outside]
    buffers = [(sizes[i], trace.buffers[i].start, trace.buffers[i].end) for i in inside]
    placement = place(buffers, capacity=capacity, seconds=effort * _PLACE_SECONDS, seed=seed)
    if capacity is not None and placement.lower_bound < placement.peak <= capacity:
        least = place(buffers, seconds=_PLACE_SECONDS, seed=seed)
        placement = min(placement, least, key=lambda found: found.peak)
    offsets = [-1] * len(out)
    for i, offset in zip(inside, placement.offsets, strict=True):
        offsets[i] = offset
    return place_at(executable, offsets)
