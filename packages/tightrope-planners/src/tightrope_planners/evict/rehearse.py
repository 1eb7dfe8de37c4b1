"""How a step that repeats is run best: plans are rehearsed on its log, in an arena of the same size.

Idea       The planner's forecast knows no addresses. So each plan, made for falling limits, runs twice on the
           log of the step in a simulated arena, and what ran again in the second run is what it costs. Where
           no plan does better than the policy alone, variants of the policy with forecasts are tried.
Source     As `lookahead` and `replay`.
Guarantee  What is chosen recomputes and copies less than `COOP`, on the log and with its times.
Complexity A planning and a replay of two steps per try.
Gaps       Ops that run for the first time on some sizes are taken to be known.
"""

from dataclasses import replace
from typing import Final

from tightrope.core import InfeasibleError
from tightrope.core.units import Bytes, Nanoseconds
from tightrope.run.evict.policies import COOP, PLANNED, Policy, Score
from tightrope_planners.evict.follow import Lookahead, StepRecord
from tightrope_planners.evict.log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd
from tightrope_planners.evict.lookahead import look_ahead
from tightrope_planners.evict.replay import HELD, LogReplay

CANDIDATES: Final[tuple[Policy, ...]] = (
    replace(COOP, name="planned_coop"),
    replace(COOP, name="planned_patient", patience=100),
    replace(COOP, name="planned_cost", patience=1000),
    replace(COOP, name="planned_left", two_ends=False),
    replace(COOP, name="planned_still", relocate=False),
    replace(PLANNED, name="planned_forecasts"),
    replace(PLANNED, name="planned_left_forecasts", two_ends=False),
    replace(PLANNED, name="planned_forecasts_cost", forecast_patience=100),
    replace(PLANNED, name="planned_dtr", score=Score.COST_SIZE_STALENESS, window=False, two_ends=False),
)
"""What `planned` tries on the last step, in a simulated arena, before a step that should repeat it."""
_LIMITS: Final = (100, 97, 94, 90)
"""Of the live bytes of a plan, in percent of the arena: addresses may want some room."""
_AS_PLANNED: Final = 1.05
"""A rehearsal that takes no more than so many times what was planned ends the search."""


def rehearse(record: StepRecord, size: Bytes) -> Lookahead | None:
    """Find how a step that follows itself recomputes and moves least; None: no better than without a plan.

    Args:
        record: one step.
        size: bytes of the arena.
    """
    step = record.log()
    twice = _repeated(step)
    uses = {slot: tuple(found) for slot, found in record.uses.items()}
    limits = tuple(size * percent // 100 for percent in _LIMITS)
    best, least = None, _rehearsed(twice, size, None)

    def consider(lookahead: Lookahead) -> Nanoseconds | None:
        nonlocal best, least
        taken = _rehearsed(twice, size, lookahead, most=least)
        if taken is not None and (least is None or taken < least):
            best, least = lookahead, taken
        return taken

    for directives in look_ahead(step, limits):
        taken = consider(Lookahead(PLANNED, directives, uses))
        if taken is not None and taken <= _AS_PLANNED * directives.ns:
            return best
    if best is None:
        for policy in CANDIDATES:
            consider(Lookahead(policy, uses=uses))
    return best


def _rehearsed(
    twice: EvictionLog, size: Bytes, lookahead: Lookahead | None, *, most: Nanoseconds | None = None
) -> Nanoseconds | None:
    """Run a step that follows itself; ns of what runs again and of moves in the second, None: it fits not."""
    policy = COOP if lookahead is None else lookahead.policy
    try:
        run = LogReplay(twice, size, policy, fixed=lookahead)
        run.limit = run.limit if most is None else min(run.limit, 3 * most)
        run.play()
    except InfeasibleError:
        return None
    return run.steps[1] + run.arena.statistics().moved_bytes * 1000 // policy.copy_rate // 2


def _repeated(step: EvictionLog) -> EvictionLog:
    """Let a step follow itself, on the same storages outside; what it holds since before is made first."""
    count = len(step.sizes)
    inside = [one for one in range(count) if not step.outside[one]]
    made = {one for event in step.events if isinstance(event, LoggedOp) for one in event.creates}
    held = tuple(one for one in inside if one not in made)
    sizes, outside, events = list(step.sizes), list(step.outside), list[LogEvent]()
    for number in range(2):
        ids = list(range(count))
        if number:
            for at, one in enumerate(inside):
                ids[one] = count + at
                sizes.append(step.sizes[one])
                outside.append(False)
        live = {ids[one] for one in held}
        if held:
            events.append(LoggedOp(HELD, 0, (), tuple(sorted(live)), recomputable=False))
        for event in step.events:
            match event:
                case LoggedOp():
                    reads, creates, changed = (
                        tuple(ids[one] for one in row) for row in (event.reads, event.creates, event.mutates)
                    )
                    live.update(creates)
                    events.append(replace(event, reads=reads, creates=creates, mutates=changed))
                case Released(storage):
                    live.discard(ids[storage])
                    events.append(Released(ids[storage]))
                case StepEnd():
                    events += [*(Released(one) for one in sorted(live)), event]
    return EvictionLog(step.name, tuple(sizes), tuple(outside), tuple(events))
