"""Choose the stretches of a plan that run fused.

Idea        The plan's list is cut into stretches; each distinct one is compiled and measured. One that is
            not faster than its ops, or makes the step need more bytes than there are, stays as it was.
            The shortest, together at most 1 % of the step, are not compiled: that costs more than it saves.
            What is chosen is contracted, placed again and forecast again.
Guarantee   Ops, their order and the ends of memory are the plan's. The result needs at most the bytes
            that were asked for and is forecast to be faster, or it is the plan itself.
Complexity  One compilation per distinct stretch; one placement per round, of at most `_ROUNDS`.
Gaps        Bounds on time and bytes are those of plans that run op by op, so a fused plan claims none.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

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
from tightrope.fuse.build import compile_programs, known, price, refusal
from tightrope.fuse.program import program_of
from tightrope.fuse.stretches import Region, regions
from tightrope.lower import contract, lower, simulate, without_writes
from tightrope.native.hook.allocator import Allocator
from tightrope.plan.assemble import placed_within
from tightrope.price.measure import Measured
from tightrope.price.ops import Tick
from tightrope.price.store import PriceStore

_ROUNDS: Final = 12
_LEAST_GAIN: Final = 0.03
"""Part of its time that a stretch must save."""
_LEAST_PART: Final = 0.01
"""Part of a step's time that is not worth a compiler's: of all stretches left out together."""
_TOO_SHORT: Final = "too short a part of the step to be compiled"


class Candidate(NamedTuple):
    """A stretch that may run fused, and what that saves."""

    stretch: FusedStretch
    saved: Nanoseconds


class Chosen(NamedTuple):
    """A plan, and where none of its stretches runs fused, why."""

    plan: Plan
    why: str = ""


def fused(
    graph: Graph,
    plan: Plan,
    *,
    budget: Bytes,
    threads: int,
    allocator: Allocator | None,
    store: PriceStore,
    tick: Tick | None = None,
) -> Chosen:
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
        A plan with stretches, placed again; or ``plan``, where none is worth it, and why.
    """
    single = lower(without_writes(graph), plan.schedule)
    room = budget - graph.persistent
    chosen, why = _candidates(graph, single, room, threads, allocator, store, tick)
    num_faster = len(chosen)
    for _ in range(_ROUNDS):
        if not chosen:
            break
        stretches = tuple(candidate.stretch for candidate in chosen)
        made = lower(graph, replace(plan, offsets=(), placed=False, stretches=stretches))
        made = placed_within(made, room, plan.certificate.seed)
        found = _planned(graph, plan, made, stretches)
        if found.forecast.total <= budget:
            if found.forecast.ns < plan.forecast.ns:
                return Chosen(found)
            return Chosen(plan, "the step would not be faster with those that fit the budget")
        chosen = _without_worst(made, chosen, room)
    if num_faster:
        why = f"{num_faster} stretches would be faster, and no choice of them was found that fits the budget"
    return Chosen(plan, why)


def _candidates(
    graph: Graph,
    single: Executable,
    room: Bytes,
    threads: int,
    allocator: Allocator | None,
    store: PriceStore,
    tick: Tick | None,
) -> tuple[list[Candidate], str]:
    """List the stretches that are faster fused; where none is, say why."""
    every = regions(graph, single, most=room)
    bare = contract(single, [_bare(graph, region) for region in every])
    stretches = [instruction for instruction in bare.instructions if isinstance(instruction, Fused)]
    programs = [program_of(stretch, threads=threads) for stretch in stretches]
    before = {p.key: sum(run.ns for run in s.runs) for s, (p, _, _) in zip(stretches, programs, strict=True)}
    counted = Counter(program.key for program, _, _ in programs)
    least = _LEAST_PART * sum(run.ns for run in single.instructions if isinstance(run, Run))
    worth = _largest({key: count * before[key] for key, count in counted.items()}, left=int(least))
    distinct = {program.key: program for program, _, _ in programs if program.key in worth}
    before_of = functools.partial(known, allocator=allocator, store=store)
    compile_programs((p for k, p in distinct.items() if before_of(p, before[k]) is None), tick=tick)
    prices = {
        key: _faster(before[key], price(program, before[key], allocator=allocator, store=store))
        for key, program in distinct.items()
    }
    store.save()
    found: list[Candidate] = []
    storage_of = {event.buffer: event.storage for event in bare.flat() if isinstance(event, Alloc)}
    for region, (program, _, made) in zip(every, programs, strict=True):
        priced = prices.get(program.key, "")
        if isinstance(priced, str):
            continue
        allocations = _allocations(priced.allocations, [storage_of[buffer] for buffer in made])
        stretch = FusedStretch(region.first, region.last, allocations, priced.ns)
        found.append(Candidate(stretch, before[program.key] - priced.ns))
    reasons = [measured for measured in prices.values() if isinstance(measured, str)]
    return found, _why(reasons + [_TOO_SHORT] * (len(counted) - len(distinct)))


def _largest(spent: Mapping[str, Nanoseconds], *, left: Nanoseconds) -> set[str]:
    """Leave out what takes least, as long as all of it takes no more than ``left``.

    >>> sorted(_largest({"a": 5, "b": 1, "c": 2}, left=3)), _largest({"a": 2}, left=3)
    (['a'], set())
    """
    kept = set(spent)
    for key in sorted(spent, key=lambda key: (spent[key], key)):
        left -= spent[key]
        if left < 0:
            break
        kept.discard(key)
    return kept


def _faster(before: Nanoseconds, measured: Measured | str) -> Measured | str:
    if isinstance(measured, Measured) and measured.ns > before * (1 - _LEAST_GAIN):
        return "not faster than its ops"
    return measured


def compile_stretches(graph: Graph, plan: Plan, *, threads: int, tick: Tick | None = None) -> bool:
    """Compile what a plan runs fused; tell whether the compiler took all of it."""
    rows = lower(graph, replace(plan, offsets=(), placed=False)).instructions
    programs = [program_of(item, threads=threads)[0] for item in rows if isinstance(item, Fused)]
    compile_programs(programs, tick=tick)
    return not any(map(refusal, programs))


def _why(reasons: Sequence[str]) -> str:
    """Say why no stretch runs fused, the most frequent reason first."""
    if not reasons:
        return "no stretch has several ops that could be one loop, and enough bytes"
    counted = [f"{count} {reason}" for reason, count in Counter(reasons).most_common()]
    return f"of {len(reasons)} distinct stretches, {'; '.join(counted)}"


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
    for run in made.instructions:
        if isinstance(run, Run):  # also what it writes over an input
            in_memory.update(result.view.base for result in graph.op(run.op).results)
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


def _without_worst(made: Executable, chosen: Sequence[Candidate], room: Bytes) -> list[Candidate]:
    """Leave out stretches that hold more than the room, or else the one at the peak, or that saves least.

    What is live while a stretch or another op runs does not depend on which stretches are chosen. So where an
    op outside of them holds more than the room, none is left.
    """
    live: Bytes = 0
    highest, worst, number = -1, 0, -1
    size: dict[int, Bytes] = {}
    least = min(range(len(chosen)), key=lambda position: chosen[position].saved)
    left_out: set[int] = set()
    for instruction in made.instructions:
        number += isinstance(instruction, Fused)
        for event in instruction.inside if isinstance(instruction, Run | Fused) else (instruction,):
            if isinstance(event, Alloc) and event.space:
                size[event.buffer] = made.charged(event)
                live += size[event.buffer]
                if live > room:
                    if not isinstance(instruction, Fused):
                        return []
                    left_out.add(number)
                if live > highest:
                    highest, worst = live, number if isinstance(instruction, Fused) else least
            elif isinstance(event, Release):
                live -= size[event.buffer]
    left_out = left_out or {worst}
    return [candidate for position, candidate in enumerate(chosen) if position not in left_out]
