"""Choose the stretches of a plan that run fused.

Idea        The plan's list is cut into stretches; each distinct one is compiled and measured. One that is
            not faster than its ops, or makes the step need more bytes than there are, stays as it was.
            What is chosen is contracted, placed again and forecast again.
Guarantee   Ops, their order and the ends of memory are the plan's. The result needs at most the bytes
            that were asked for and is forecast to be faster, or it is the plan itself.
Complexity  One compilation per distinct stretch; one placement per round, of at most `_ROUNDS`.
Gaps        Bounds on time and bytes are those of plans that run op by op, so a fused plan claims none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tightrope.core import (
    Alloc,
    Allocation,
    Bytes,
    Certificate,
    Executable,
    Fused,
    FusedStretch,
    Graph,
    Nanoseconds,
    Plan,
    Reason,
    Release,
    Run,
    StorageId,
)
from tightrope.core.executable import ARENA, HEAP
from tightrope.fuse.build import price
from tightrope.fuse.program import FusedProgram, program_of
from tightrope.fuse.stretches import Region, regions
from tightrope.fuse.traced import can_trace
from tightrope.lower import contract, lower, simulate
from tightrope.native.hook.allocator import Allocator
from tightrope.plan.assemble import placed_within
from tightrope.price.store import PriceStore

_ROUNDS: Final = 12
_LEAST_GAIN: Final = 0.03
"""Part of its time that a stretch must save."""

Tick = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Candidate:
    """A stretch that may run fused: where, what, what it saves, and the stretch itself."""

    region: Region
    program: FusedProgram
    saved: Nanoseconds
    stretch: FusedStretch


def fused(
    graph: Graph,
    plan: Plan,
    *,
    budget: Bytes,
    threads: int,
    allocator: Allocator | None,
    store: PriceStore,
    tick: Tick | None = None,
) -> Plan:
    """Let the stretches of a plan run fused where that is faster.

    Args:
        graph: that the plan was made for, priced.
        plan: placed, of single ops.
        budget: total bytes that the step may take.
        threads: of torch.
        allocator: the hook that records allocations.
        store: prices known already.
        tick: called with (done, total, what) while stretches are compiled.

    Returns:
        A plan with stretches, placed again; or ``plan``, where none is worth it.
    """
    single = lower(graph, replace(plan, offsets=(), placed=False))
    room = budget - graph.persistent
    chosen = _candidates(graph, single, room, threads, allocator, store, tick)
    for _ in range(_ROUNDS):
        if not chosen:
            break
        made = contract(single, [candidate.stretch for candidate in chosen])
        made = placed_within(made, room, plan.certificate.seed)
        found = _planned(graph, plan, made, [candidate.stretch for candidate in chosen])
        if found.forecast.total <= budget:
            return found if found.forecast.ns < plan.forecast.ns else plan
        chosen = _without_worst(made, chosen)
    return plan


def _candidates(
    graph: Graph,
    single: Executable,
    room: Bytes,
    threads: int,
    allocator: Allocator | None,
    store: PriceStore,
    tick: Tick | None,
) -> list[Candidate]:
    found: list[Candidate] = []
    every = regions(graph, single, most=room)
    bare = contract(single, [_bare(graph, region) for region in every])
    stretches = [instruction for instruction in bare.instructions if isinstance(instruction, Fused)]
    programs = [program_of(stretch, threads=threads) for stretch in stretches]
    distinct = {program.key: program for program, _, _ in programs}
    prices = {}
    for done, (key, program) in enumerate(distinct.items()):
        if tick is not None:
            tick(done, len(distinct), program.calls[0].target)
        prices[key] = price(program, allocator=allocator, store=store) if can_trace(program) else None
    store.save()
    storage_of = {event.buffer: event.storage for event in bare.flat() if isinstance(event, Alloc)}
    for region, stretch, (program, _, made) in zip(every, stretches, programs, strict=True):
        measured, before = prices[program.key], sum(run.ns for run in stretch.runs)
        if measured is None or measured.ns > before * (1 - _LEAST_GAIN):
            continue
        storages = [storage_of[buffer] for buffer in made]
        allocations = _allocations(measured.allocations, storages)
        found.append(
            Candidate(
                region,
                program,
                before - measured.ns,
                FusedStretch(region.first, region.last, allocations, measured.ns),
            )
        )
    return found


def _bare(graph: Graph, region: Region) -> FusedStretch:
    """A stretch without temporaries: what it computes does not depend on them."""
    left = (Allocation(graph.storages[storage].bytes, storage, at) for at, storage in enumerate(region.left))
    return FusedStretch(region.first, region.last, tuple(left))


def _allocations(
    measured: Sequence[tuple[Bytes, int, int, int]], storages: Sequence[StorageId]
) -> tuple[Allocation, ...]:
    """Name the storages that measured allocations become."""
    ticks = 1 + max((max(start, end) for _, _, start, end in measured), default=0)
    found = []
    for size, result, start, end in measured:
        storage = storages[result] if result >= 0 else -1
        found.append(Allocation(size, storage, start, ticks if storage < 0 and end < 0 else end))
    return tuple(found)


def _planned(graph: Graph, plan: Plan, made: Executable, stretches: Sequence[FusedStretch]) -> Plan:
    figures = simulate(made)
    forecast = replace(
        plan.forecast, peak=figures.peak, arena=figures.arena, outside=figures.outside, ns=figures.ns
    )
    claim = plan.certificate
    served = [event for event in made.flat() if isinstance(event, Alloc) and event.space in (ARENA, HEAP)]
    in_memory = {event.storage for event in served}
    return replace(
        plan,
        offsets=tuple(event.offset for event in served),
        forecast=forecast,
        certificate=replace(
            Certificate(), lower_bound=graph.persistent, seed=claim.seed, versions=claim.versions
        ),
        reasons=tuple(_reason(reason, in_memory) for reason in plan.reasons),
        stretches=tuple(stretches),
    )


def _reason(reason: Reason, in_memory: set[StorageId]) -> Reason:
    if reason.storage in in_memory:
        return reason
    often = "" if reason.copies == 1 else f", {reason.copies} times"
    text = f"computed inside fused stretches{often}: it takes no memory of its own"
    return replace(reason, decision="fused", text=text)


def _without_worst(made: Executable, chosen: Sequence[Candidate]) -> list[Candidate]:
    """Leave out the stretch that holds most at the peak, or else the one that saves least."""
    live: Bytes = 0
    highest, worst, number = -1, 0, -1
    size: dict[int, Bytes] = {}
    least = min(range(len(chosen)), key=lambda position: chosen[position].saved)
    for instruction in made.instructions:
        number += isinstance(instruction, Fused)
        for event in instruction.inside if isinstance(instruction, Run | Fused) else (instruction,):
            if isinstance(event, Alloc) and event.space:
                size[event.buffer] = made.charged(event)
                live += size[event.buffer]
                if live > highest:
                    highest, worst = live, number if isinstance(instruction, Fused) else least
            elif isinstance(event, Release):
                live -= size[event.buffer]
    return [candidate for position, candidate in enumerate(chosen) if position != worst]
