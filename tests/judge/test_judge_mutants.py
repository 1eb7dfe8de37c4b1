"""Every damaged plan is refused.

A *rule* mutant breaks the schedule and must fall to the schedule's rules alone, however its figures
would be repaired. A *claim* mutant leaves the schedule alone and damages what the plan says.
Each mutator returns None where the plan offers nothing to damage in its way.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from families import FAMILIES, draw_plan, simulate

from tightrope.core import (
    Compute,
    FingerprintError,
    Free,
    Graph,
    JudgeError,
    PageIn,
    PageOut,
    Plan,
    PlanFileError,
    Schedule,
    Step,
    Wait,
)
from tightrope.lower import lowered, problems, walked

Rule = Callable[[random.Random, Graph, list[Step]], list[Step] | None]
Claim = Callable[[random.Random, Graph, Plan], Plan | None]


def places(steps: list[Step], kind: type[Step]) -> list[int]:
    return [position for position, step in enumerate(steps) if isinstance(step, kind)]


def first_runs(graph: Graph, steps: list[Step]) -> list[int]:
    seen: list[int] = []
    for position in places(steps, Compute):
        step = steps[position]
        assert isinstance(step, Compute)
        if step.op == len(seen) < len(graph.ops):
            seen.append(position)
    return seen


def inserted(steps: list[Step], position: int, *new: Step) -> list[Step]:
    return [*steps[:position], *new, *steps[position:]]


def drop_a_first_run(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    position = rng.choice(first_runs(graph, steps))
    later = any(isinstance(s, Compute) and s == steps[position] for s in steps[position + 1 :])
    return None if later else steps[:position] + steps[position + 1 :]


def drop_a_needed_rerun(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    firsts = set(first_runs(graph, steps))
    reruns = [p for p in places(steps, Compute) if p not in firsts]
    needed = [p for p in reruns if len(steps[p].drop) < len(graph.op(steps[p].op).creates)]  # type: ignore[union-attr]
    if not needed:
        return None
    position = rng.choice(needed)
    return steps[:position] + steps[position + 1 :]


def drop_a_free(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    frees = places(steps, Free)
    if not frees:
        return None
    position = rng.choice(frees)
    return steps[:position] + steps[position + 1 :]


def duplicate_a_free(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    frees = places(steps, Free)
    if not frees:
        return None
    position = rng.choice(frees)
    return inserted(steps, position, steps[position])


def free_before_the_last_reader(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    frees = places(steps, Free)
    if not frees:
        return None
    position = rng.choice(frees)
    reader = max(p for p in places(steps, Compute) if p < position)
    free = steps[position]
    assert isinstance(free, Free)
    if free.storage not in {*graph.op(steps[reader].op).reads, *graph.op(steps[reader].op).creates}:  # type: ignore[union-attr]
        return None
    return inserted(steps[:position] + steps[position + 1 :], reader, free)


def swap_two_first_runs(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    a, b = rng.sample(first_runs(graph, steps), 2)
    swapped = list(steps)
    swapped[a], swapped[b] = steps[b], steps[a]
    return swapped


def reverse(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    return steps[::-1]


def cut_the_tail(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    return steps[: first_runs(graph, steps)[-1]]


def free_a_resident(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    residents = [s.id for s in graph.storages if s.resident_at_end]
    return inserted(steps, rng.randrange(len(steps) + 1), Free(rng.choice(residents))) if residents else None


def free_an_external(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    external = [s.id for s in graph.storages if s.external]
    return inserted(steps, rng.randrange(len(steps) + 1), Free(rng.choice(external)))


def drop_a_resident(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    for position in first_runs(graph, steps):
        op = steps[position].op  # type: ignore[union-attr]
        for storage in graph.op(op).creates:
            if graph.storages[storage].resident_at_end:
                return [*steps[:position], Compute(op, (storage,)), *steps[position + 1 :]]
    return None


def drop_what_is_freed_later(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    position = rng.choice(places(steps, Compute))
    step = steps[position]
    assert isinstance(step, Compute)
    for storage in graph.op(step.op).creates:
        if storage not in step.drop and not graph.storages[storage].resident_at_end:
            return [*steps[:position], Compute(step.op, (*step.drop, storage)), *steps[position + 1 :]]
    return None


def drop_what_it_does_not_make(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    position = rng.choice(places(steps, Compute))
    op, drop = steps[position].op, steps[position].drop  # type: ignore[union-attr]
    foreign = rng.choice([s.id for s in graph.storages if s.id not in graph.op(op).creates])
    return [*steps[:position], Compute(op, (*drop, foreign)), *steps[position + 1 :]]


def drop_twice(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    making = [p for p in places(steps, Compute) if graph.op(steps[p].op).creates]  # type: ignore[union-attr]
    position = rng.choice(making)
    op = steps[position].op  # type: ignore[union-attr]
    storage = graph.op(op).creates[0]
    return [*steps[:position], Compute(op, (storage, storage)), *steps[position + 1 :]]


def unknown_op(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    number = rng.choice((-1, -len(graph.ops), len(graph.ops) + len(graph.variants), 10**9))
    return inserted(steps, rng.randrange(len(steps) + 1), Compute(number))


def unknown_storage(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    number = rng.choice((-1, -2, len(graph.storages), 10**9))
    return inserted(steps, rng.randrange(len(steps) + 1), Free(number))


def unknown_drop(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    position = rng.choice(places(steps, Compute))
    op = steps[position].op  # type: ignore[union-attr]
    bad = Compute(op, (rng.choice((-1, len(graph.storages), 10**9)),))
    return [*steps[:position], bad, *steps[position + 1 :]]


def rerun_what_must_run_once(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    once = [op for op in graph.ops if op.flags or op.mutates]
    if not once:
        return None
    op = rng.choice(once)
    after = first_runs(graph, steps)[op.id] + 1
    return inserted(steps, rng.randrange(after, len(steps) + 1), Compute(op.id, op.creates))


def rerun_after_a_change_in_place(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    changed = {s: op.id for op in graph.ops for s in op.mutates}
    for op in graph.ops:
        later = [changed[s] for s in op.reads if changed.get(s, -1) > op.id]
        if later and not op.flags and not op.mutates and op.creates:
            after = first_runs(graph, steps)[max(later)] + 1
            return inserted(steps, after, Compute(op.id, op.creates))
    return None


def variant_before_its_op(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    drawn = [op for op in graph.ops if op.variant >= 0]
    if not drawn:
        return None
    op = rng.choice(drawn)
    before = first_runs(graph, steps)[op.id]
    return inserted(steps, rng.randrange(before + 1), Compute(op.variant, graph.op(op.variant).creates))


def variant_for_its_op(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    drawn = [op for op in graph.ops if op.variant >= 0]
    if not drawn:
        return None
    op = rng.choice(drawn)
    position = first_runs(graph, steps)[op.id]
    return [*steps[:position], Compute(op.variant), *steps[position + 1 :]]


def second_live_copy(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    position = rng.choice(places(steps, Compute))
    step = steps[position]
    assert isinstance(step, Compute)
    if len(step.drop) == len(graph.op(step.op).creates):
        return None
    return inserted(steps, position + 1, step)


def page_something(rng: random.Random, graph: Graph, steps: list[Step]) -> list[Step] | None:
    paging = rng.choice((PageOut(0), PageIn(0), Wait(0)))
    return inserted(steps, rng.randrange(len(steps) + 1), paging)


RULES: tuple[Rule, ...] = (
    drop_a_first_run,
    drop_a_needed_rerun,
    drop_a_free,
    duplicate_a_free,
    free_before_the_last_reader,
    swap_two_first_runs,
    reverse,
    cut_the_tail,
    free_a_resident,
    free_an_external,
    drop_a_resident,
    drop_what_is_freed_later,
    drop_what_it_does_not_make,
    drop_twice,
    unknown_op,
    unknown_storage,
    unknown_drop,
    rerun_what_must_run_once,
    rerun_after_a_change_in_place,
    variant_before_its_op,
    variant_for_its_op,
    second_live_copy,
    page_something,
)


def figure(name: str, change: int) -> Claim:
    def damage(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
        value = getattr(plan.forecast, name) + change * rng.choice((1, 64, 4096))
        if value < 0:
            return None
        forecast = msgspec.structs.replace(plan.forecast, **{name: value})
        return msgspec.structs.replace(plan, forecast=forecast, budget=max(plan.budget, forecast.total))

    damage.__name__ = f"{name}{change:+d}"
    return damage


def certificate(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, certificate=msgspec.structs.replace(plan.certificate, **changes))


def offset(plan: Plan, number: int, value: int) -> Plan:
    offsets = [*plan.offsets[:number], value, *plan.offsets[number + 1 :]]
    return msgspec.structs.replace(plan, offsets=tuple(offsets))


def inside(plan: Plan) -> list[int]:
    return [number for number, value in enumerate(plan.offsets) if value >= 0]


def overlap_two(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    blocks = simulate(graph, plan.schedule)
    pairs = [
        (a, b) for a in inside(plan) for b in inside(plan)
        if a != b and blocks[a][1] < blocks[b][2] and blocks[b][1] < blocks[a][2]
    ]  # fmt: skip
    if not pairs:
        return None
    moved, onto = rng.choice(pairs)
    low, high = plan.offsets[onto] - blocks[moved][0] + 64, plan.offsets[onto] + blocks[onto][0] - 64
    return offset(plan, moved, max(0, rng.randrange(low, high + 1) // 64 * 64))


def misalign(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    number = rng.choice(inside(plan))
    return offset(plan, number, plan.offsets[number] + rng.randrange(1, 64))


def leave_the_arena(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    number = rng.choice(inside(plan))
    return offset(plan, number, plan.forecast.arena // 64 * 64 - rng.choice((0, -64)))


def below_the_arena(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return offset(plan, rng.choice(inside(plan)), rng.choice((-64, -2, -1)))


def place_what_is_outside(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    out = [number for number, value in enumerate(plan.offsets) if value < 0]
    return offset(plan, rng.choice(out), 0) if out else None


def lose_an_offset(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return msgspec.structs.replace(plan, offsets=plan.offsets[:-1])


def add_an_offset(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return msgspec.structs.replace(plan, offsets=(*plan.offsets, 0))


def wrong_fingerprint(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    digit = rng.choice([d for d in "0123456789abcdef" if d != plan.fingerprint[0]])
    return msgspec.structs.replace(plan, fingerprint=digit + plan.fingerprint[1:])


def budget_too_small(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return msgspec.structs.replace(plan, budget=plan.forecast.total - rng.randrange(1, 65))


def limit_too_small(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    limits = rng.choice(({"bytes": (plan.forecast.total - 1,)}, {"seconds": (plan.forecast.ns - 1) / 1e9}))
    return msgspec.structs.replace(plan, limits=msgspec.structs.replace(plan.limits, **limits))


def bound_too_high(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return certificate(plan, lower_bound=plan.forecast.total + rng.randrange(1, 10**6))


def witness_out_of_range(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return certificate(plan, witness=rng.choice((-1, len(graph.ops), 10**6)))


def witness_too_weak(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    """An op whose first run, at its instant in this very schedule, holds less than claimed."""
    held = []
    for op in graph.ops:
        steps = list(plan.schedule.steps[: first_runs(graph, list(plan.schedule.steps))[op.id] + 1])
        before = simulate(graph, Schedule(tuple(steps[:-1])))
        alone = simulate(graph, Schedule((Compute(op.id),)))
        live = sum(size for size, _, end, _ in before if end == _ticks(before))
        held.append(graph.persistent + live + sum(size for size, *_ in alone))
    weak = [number for number, total in enumerate(held) if total < plan.certificate.lower_bound]
    return certificate(plan, witness=rng.choice(weak)) if weak else None


def _ticks(blocks: list[tuple[int, int, int, int]]) -> int:
    return max((end for _, _, end, _ in blocks), default=0)


def time_bound_too_high(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return certificate(plan, ns_bound=plan.forecast.base_ns + rng.randrange(1, 1000))


def wrongly_proved(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return certificate(plan, proved=True, ns_bound=plan.forecast.base_ns - rng.randrange(1, 5))


def wrong_reason(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    number = rng.randrange(len(plan.reasons))
    reason = plan.reasons[number]
    other = {"kept": "recomputed", "recomputed": "kept"}[reason.decision]
    changes = rng.choice(
        (
            {"decision": other},
            {"decision": "paged"},
            {"copies": reason.copies + 1},
            {"bytes": reason.bytes + 64},
        )
    )
    changed = msgspec.structs.replace(reason, **changes)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        plan, reasons=(*plan.reasons[:number], changed, *plan.reasons[number + 1 :])
    )


def lose_a_reason(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    return msgspec.structs.replace(plan, reasons=plan.reasons[1:]) if len(plan.reasons) > 1 else None


def explain_an_external(rng: random.Random, graph: Graph, plan: Plan) -> Plan | None:
    external = msgspec.structs.replace(plan.reasons[0], storage=0)
    return msgspec.structs.replace(plan, reasons=(*plan.reasons, external))


CLAIMS: tuple[Claim, ...] = (
    *(figure(n, c) for n in ("persistent", "peak", "arena", "outside", "ns", "base_ns") for c in (1, -1)),
    overlap_two,
    misalign,
    leave_the_arena,
    below_the_arena,
    place_what_is_outside,
    lose_an_offset,
    add_an_offset,
    wrong_fingerprint,
    budget_too_small,
    limit_too_small,
    bound_too_high,
    witness_out_of_range,
    witness_too_weak,
    time_bound_too_high,
    wrongly_proved,
    wrong_reason,
    lose_a_reason,
    explain_an_external,
)

SEEDS = range(8)


def refused(check: Callable[[Graph, Any], object], graph: Graph, subject: Plan | Schedule) -> bool:
    try:
        check(graph, subject)
    except (JudgeError, PlanFileError, FingerprintError):
        return True
    return False


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_damage_is_refused(family: str) -> None:
    made = 0
    for seed in SEEDS:
        graph = FAMILIES[family](seed)
        plan = draw_plan(graph, seed)
        rng = random.Random(seed)
        for rule in RULES:
            steps = rule(rng, graph, list(plan.schedule.steps))
            if steps is None:
                continue
            made += 1
            assert refused(walked, graph, Schedule(tuple(steps))), f"{rule.__name__}, seed {seed}"
            assert problems(graph, msgspec.structs.replace(plan, schedule=Schedule(tuple(steps))))
        for claim in CLAIMS:
            mutant = claim(rng, graph, plan)
            if mutant is None:
                continue
            made += 1
            assert refused(lowered, graph, mutant), f"{claim.__name__}, seed {seed}"
            assert problems(graph, mutant)
    assert made >= 250


@pytest.mark.few(18)
@pytest.mark.parametrize("damage", [*RULES, *CLAIMS], ids=lambda damage: damage.__name__)
def test_every_kind_of_damage_is_exercised(damage: Rule | Claim) -> None:
    """A mutator that never finds anything to damage would prove nothing."""
    found = 0
    for family, make in FAMILIES.items():
        for seed in SEEDS:
            graph = make(seed)
            plan = draw_plan(graph, seed)
            subject = list(plan.schedule.steps) if damage in RULES else plan
            found += damage(random.Random(f"{family}{seed}"), graph, subject) is not None  # type: ignore[arg-type]
    assert found >= 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_graph_is_refused(family: str, seed: int) -> None:
    rng = random.Random(seed)
    graph = FAMILIES[family](seed)
    plan = draw_plan(graph, seed)
    storage = rng.choice([s for s in graph.storages if not s.external])
    for bytes_ in (storage.bytes // 2, storage.bytes + 4096):
        storages = list(graph.storages)
        storages[storage.id] = msgspec.structs.replace(storage, bytes=bytes_)
        other = msgspec.structs.replace(graph, storages=tuple(storages))
        repaired = msgspec.structs.replace(plan, fingerprint=other.fingerprint)
        assert problems(other, plan)
        assert problems(other, repaired)
    reordered = msgspec.structs.replace(graph, ops=(*graph.ops[1:], graph.ops[0]))
    assert problems(reordered, plan)
