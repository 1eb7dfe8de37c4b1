"""H5: forecast and observed curves of planned whole steps, byte by byte."""

from bisect import bisect_left
from typing import Final

import tightrope
from benchmarks.recorder.nets import Net, net
from benchmarks.recorder.row import Row
from benchmarks.zoo import Scale
from tightrope.core import EventPhase, InfeasibleError, TightropeError, Trace
from tightrope.record import forecast
from tightrope.run.step import TrainingStep
from tightrope_trace import explain, module_times, record_run
from tightrope_trace.judge.trace import compare_traces

_BUDGETS: Final = ("75%", "90%", "100%")
_PLAN_SECONDS: Final = 5.0


def run_under_budget(one: Net) -> tuple[TrainingStep, str]:
    """Run two steps under the smallest of a few budgets that is feasible."""
    for budget in _BUDGETS:
        step = tightrope.step(
            one.model, budget=budget, model=one.model, optimizer=one.optimizer, seconds=_PLAN_SECONDS
        )
        try:
            for _ in range(2):
                step(*one.inputs)
        except InfeasibleError:
            continue
        return step, budget
    raise TightropeError(f"{one.name}: no budget of {', '.join(_BUDGETS)} is feasible.")


def planned(name: str, scale: Scale) -> Row:
    """Compare the third step of a plan with its forecast, under a budget that makes it recompute."""
    one = net(name, scale)
    step, budget = run_under_budget(one)
    with record_run(step) as recording:
        step(*one.inputs)
    seen = recording.trace
    said = forecast(recording.graph, recording.plan, classes=recording.classes)
    result = compare_traces(said, seen)
    curve = said.profile() == seen.profile()
    agrees, adds = _allocator_agrees(seen), _adds_up(seen)
    return Row(
        {
            "net": name,
            "budget": budget,
            "recomputed": sum(event.phase is EventPhase.RECOMPUTE for event in seen.events),
            "buffers": result.num_buffers,
            "peak difference": result.peak_difference,
            "curves equal": curve,
            "allocator agrees": agrees,
            "children add up": adds,
        },
        result.equal and curve and agrees and adds,
    )


def _allocator_agrees(trace: Trace) -> bool:
    """Whether the allocator's count at the end of every op is the curve's value at that moment.

    What an op allocates happens before its end; what is released behind it has its end as time.
    """
    profile = [0, *trace.profile()]
    (counter,) = trace.counters
    return all(
        value == profile[bisect_left(trace.ticks, when)]
        for when, value in zip(counter.times, counter.values, strict=True)
    )


def _adds_up(trace: Trace) -> bool:
    own = [0] * len(trace.modules)
    for event, ns in zip(trace.events, trace.self_times(), strict=True):
        own[event.module] += ns
    whole = module_times(trace)
    below = [0] * len(whole)
    for position, module in enumerate(trace.modules[1:], start=1):
        below[module.parent] += whole[position]
    adds_up = all(a == b + c for a, b, c in zip(whole, own, below, strict=True))
    return adds_up and whole[0] == explain(trace).operator_ns
