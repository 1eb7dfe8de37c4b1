"""Check runs and plans of streams with deadlines.

Idea        Derive every request anew from frame rates, and look at each frame of the run by itself: when it
            appeared, what it waited for, where and how long it ran. Then add up: processors do not overlap,
            weights and activations fit into the arena, requests are conserved, the score is what it should
            be, and no plan can score more than the bound that follows from the plan's prices.
Guarantee   Passes only runs that the rules allow. The bound holds for any prices that are not negative.
Complexity  O(n^2) in the frames of one processor or arena at worst, O(n log n) in common.
Gaps        Which frames of a model with a probability below 1 are asked for is taken from the run.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from tightrope.core import JudgeError, Nanoseconds
from tightrope_fleet.values.streams import FrameRun, StreamMachine, StreamPlan, StreamRun, StreamScenario

_MS = 1_000_000
_CLOSE: Nanoseconds = 10_200
"""Compatible rules retire a frame up to 0.01 ms early, and keep times in single precision."""
_STEEP, _MOST_MJ = 15.0, 1500.0


def check_stream_run(
    scenario: StreamScenario, machine: StreamMachine, run: StreamRun, *, timed: bool = False
) -> float:
    """Refuse a run that the rules do not allow.

    Args:
        scenario: what ran.
        machine: where.
        run: every request.
        timed: durations were measured, so that they need not be those of the machine's table.

    Returns:
        The score, of 100.

    Raises:
        JudgeError: names the frame.
    """
    loose = _CLOSE if run.rules == "compatible" else 0
    spans = [_spans(model.fps, run) for model in scenario.models]
    by_model = _by_model(scenario, run, spans)
    for frame in run.frames:
        _check_frame(scenario, machine, run, frame, spans[frame.model], timed)
    for m, model in enumerate(scenario.models):
        for name in model.after:
            above = [other.name for other in scenario.models].index(name)
            _check_order(scenario, run, by_model[m], by_model[above], spans[above], loose)
    for p in range(len(machine.processors)):
        ran = sorted((f for f in run.frames if f.processor == p), key=lambda f: (f.start, f.end))
        for one, other in pairwise(ran):
            if other.start < one.end - loose:
                raise JudgeError(
                    f"{_name(scenario, one)} and {_name(scenario, other)} overlap on processor {p}: the "
                    "first ends "
                    f"at {one.end} ns, the other starts at {other.start} ns."
                )
    _check_arena(scenario, machine, run)
    return _score(scenario, run, by_model)


def check_stream_plan(
    scenario: StreamScenario, machine: StreamMachine, plan: StreamPlan, run: StreamRun
) -> None:
    """Refuse a plan whose simulated run is not what it says, or whose bound does not follow from its prices.

    Raises:
        JudgeError: names what differs.
    """
    found = check_stream_run(scenario, machine, run)
    if (plan.rules, plan.horizon, plan.seed) != (run.rules, run.horizon, run.seed):
        raise JudgeError("plan and run have other rules, horizons or seeds.")
    if abs(found - plan.score) > 1e-6:
        raise JudgeError(f"the plan forecasts a score of {plan.score:.6f}; its run has {found:.6f}.")
    if run.peak != plan.peak:
        raise JudgeError(f"the plan forecasts {plan.peak} bytes in the arena; its run has {run.peak}.")
    chosen = {(one.model, one.frame): one.processor for one in plan.choices}
    if len(chosen) != len(plan.choices):
        raise JudgeError("the plan decides about a frame twice.")
    for p in range(len(machine.processors)):
        ran = [f for f in run.frames if f.processor == p]
        ran.sort(key=lambda f: (f.start, f.end))
        places = {(c.model, c.frame): at for at, c in enumerate(plan.choices) if c.processor == p}
        order = [places.get((f.model, f.frame), -1) for f in ran]
        if -1 in order or order != sorted(order):
            raise JudgeError(f"processor {p} does not run the plan's frames in the plan's order.")
    bound = _bound(scenario, machine, plan, run)
    if plan.upper_bound < bound - 1e-6 and plan.upper_bound < 100:
        raise JudgeError(
            f"the bound {plan.upper_bound:.6f} does not follow from the prices: {bound:.6f} does."
        )
    if plan.score > plan.upper_bound + 1e-6:
        raise JudgeError(f"the score {plan.score:.6f} is above the bound {plan.upper_bound:.6f}.")


def _name(scenario: StreamScenario, frame: FrameRun) -> str:
    return f"frame {frame.frame} of {scenario.models[frame.model].name!r:.60}"


def _spans(fps: float, run: StreamRun) -> list[tuple[Nanoseconds, Nanoseconds]]:
    """When each frame appears and is due."""
    if run.rules == "compatible":
        period = 1000 // int(fps) * _MS
        return [(k * period, (k + 1) * period) for k in range(run.horizon // period)]
    exact = Fraction(10**9) / Fraction(fps).limit_denominator(10**6)
    count = math.ceil(run.horizon / exact) + 1
    spans = [(math.floor(k * exact), math.floor((k + 1) * exact)) for k in range(count)]
    return [span for span in spans if span[0] < run.horizon]


def _by_model(
    scenario: StreamScenario, run: StreamRun, spans: Sequence[Sequence[tuple[int, int]]]
) -> list[dict[int, FrameRun]]:
    """Frames by number; refuses requests that are missing, there twice or made up."""
    found: list[dict[int, FrameRun]] = [{} for _ in scenario.models]
    for frame in run.frames:
        if not 0 <= frame.model < len(found) or not 0 <= frame.frame < len(spans[frame.model]):
            raise JudgeError(f"frame {frame.frame} of model {frame.model} was never requested.")
        if frame.frame in found[frame.model]:
            raise JudgeError(f"{_name(scenario, frame)} is there twice.")
        found[frame.model][frame.frame] = frame
    for m, model in enumerate(scenario.models):
        certain = model.probability == 1 and all(
            other.probability == 1 for other in scenario.models if run.rules == "strict"
        )
        if certain and len(found[m]) != len(spans[m]):
            raise JudgeError(
                f"{len(spans[m])} frames of {model.name!r:.60} were requested; {len(found[m])} are there."
            )
    return found


def _check_frame(
    scenario: StreamScenario,
    machine: StreamMachine,
    run: StreamRun,
    frame: FrameRun,
    spans: Sequence[tuple[int, int]],
    timed: bool,
) -> None:
    name, (release, deadline) = _name(scenario, frame), spans[frame.frame]
    if frame.deadline != deadline or frame.released < release or frame.start < frame.released:
        raise JudgeError(
            f"{name}: appears at {release} ns and is due at {deadline} ns; the run says seen "
            f"{frame.released}, "
            f"started {frame.start}, due {frame.deadline}."
        )
    if run.rules == "strict" and frame.released != release:
        raise JudgeError(f"{name}: appears at {release} ns and was seen at {frame.released} ns.")
    ran = frame.state in ("done", "in_flight")
    if ran != (0 <= frame.processor < len(machine.processors)):
        raise JudgeError(f"{name}: {frame.state} on processor {frame.processor}.")
    if not ran:
        return
    if frame.start > deadline:
        raise JudgeError(f"{name}: started at {frame.start} ns, after its deadline: it had to be dropped.")
    model = scenario.models[frame.model]
    cost = machine.processors[frame.processor].costs[model.name]
    page = math.ceil(Fraction(10**9 * model.weights) / Fraction(machine.page_rate)) if machine.arena else 0
    if frame.page_ns and abs(frame.page_ns - page) > 1:
        raise JudgeError(f"{name}: weights come in in {page} ns; the run says {frame.page_ns} ns.")
    slack = 200 if run.rules == "compatible" else 0
    if not timed and abs(frame.end - frame.start - frame.page_ns - cost.ns) > slack:
        raise JudgeError(
            f"{name}: takes {cost.ns + frame.page_ns} ns on processor {frame.processor}; the run says "
            f"{frame.end - frame.start} ns."
        )
    if frame.end <= frame.start or abs(frame.mj - cost.mj) > 1e-9:
        raise JudgeError(f"{name}: ends at {frame.end} ns with {frame.mj} mJ; it costs {cost.mj} mJ.")


def _check_order(
    scenario: StreamScenario,
    run: StreamRun,
    mine: dict[int, FrameRun],
    above: dict[int, FrameRun],
    spans: Sequence[tuple[int, int]],
    loose: Nanoseconds,
) -> None:
    """Refuse frames that start before what they wait for is done."""
    ends = sorted(frame.end for frame in above.values() if frame.state == "done")
    for frame in mine.values():
        if frame.processor < 0:
            continue
        if run.rules == "compatible":
            if sum(end <= frame.start + loose for end in ends) <= frame.frame:
                raise JudgeError(f"{_name(scenario, frame)} starts before enough of what it needs is done.")
            continue
        newest = max((k for k, (release, _) in enumerate(spans) if release <= frame.released), default=-1)
        needed = above.get(newest)
        if needed is None or needed.state != "done" or needed.end > frame.start:
            raise JudgeError(
                f"{_name(scenario, frame)} starts at {frame.start} ns before what it needs is done."
            )


def _check_arena(scenario: StreamScenario, machine: StreamMachine, run: StreamRun) -> None:
    """Refuse runs whose weights and activations need more than the arena, or more than they say."""
    if not machine.arena:
        return
    held: list[tuple[int, int, int]] = []
    for m, model in enumerate(scenario.models):
        ran = sorted(
            (f for f in run.frames if f.model == m and f.processor >= 0), key=lambda f: (f.start, f.end)
        )
        since, until = -1, -1
        for frame in ran:
            held.append((frame.start, frame.end, model.activations))
            if frame.page_ns or not model.weights:
                if since >= 0:
                    held.append((since, until, model.weights))
                since = frame.start
                if until > frame.start and model.weights:
                    raise JudgeError(f"{_name(scenario, frame)}: its weights come in while they are in use.")
            elif since < 0:
                raise JudgeError(f"{_name(scenario, frame)}: its weights were never brought in.")
            until = max(until, frame.end)
        if since >= 0:
            held.append((since, until, model.weights))
    steps = sorted([(start, 1, size) for start, _, size in held] + [(end, 0, -size) for _, end, size in held])
    level = most = 0
    for _, _, size in steps:
        level += size
        most = max(most, level)
    if most > machine.arena or run.peak > machine.arena:
        raise JudgeError(f"the arena has {machine.arena} bytes; the run needs {most} and says {run.peak}.")
    if most > run.peak:
        raise JudgeError(f"the run says {run.peak} bytes were in the arena; it needs {most}.")


def _score(scenario: StreamScenario, run: StreamRun, by_model: Sequence[dict[int, FrameRun]]) -> float:
    points: list[float] = []
    for model, frames in zip(scenario.models, by_model, strict=True):
        done = [frame for frame in frames.values() if frame.state == "done"]
        lost = sum(frame.state == "dropped" for frame in frames.values())
        num = len(done) + lost if run.rules == "compatible" else len(frames)
        if not num:
            continue
        earned = math.fsum(_met(f.end - f.deadline) * _saved(f.mj, run.rules == "strict") for f in done)
        points.append(100 * earned / num * (1 - lost / num if run.rules == "compatible" else model.quality))
    return math.fsum(points) / len(points) if points else 0.0


def _met(late: Nanoseconds) -> float:
    return 1 / (1 + math.exp(min(700.0, _STEEP * late / _MS)))


def _saved(mj: float, clamped: bool) -> float:
    share = 1 - mj / _MOST_MJ
    return min(1.0, max(0.0, share)) if clamped else share


def _bound(scenario: StreamScenario, machine: StreamMachine, plan: StreamPlan, run: StreamRun) -> float:
    """What every plan stays below, from the prices of the plan."""
    if len(plan.prices) != len(machine.processors) or any(not 0 <= price < math.inf for price in plan.prices):
        raise JudgeError(f"the bound needs a price per processor, at least 0; the plan has {plan.prices}.")
    old = plan.rules == "compatible"
    spans = [_spans(model.fps, run) for model in scenario.models]
    asked = [sum(f.model == m for f in run.frames) for m in range(len(spans))]
    last = max(release for span in spans for release, _ in span)
    fewest = list(asked)
    if old:
        for m, span in enumerate(spans):
            fewest[m] = sum(due < last for _, due in span) - len(machine.processors)
            asked[m] = len(span)
    num_models = max(1, sum(count > 0 for count in fewest))
    total = sum(plan.prices) * (max(due for span in spans for _, due in span) + _MS)
    for m, model in enumerate(scenario.models):
        share = 100 / num_models / max(1, fewest[m]) * (1 if old else model.quality)
        period = max((due - release for release, due in spans[m]), default=0)
        beyond = 0.0
        for price, processor in zip(plan.prices, machine.processors, strict=True):
            cost = processor.costs[model.name]
            gain = share * max(0.0, _saved(cost.mj, not old)) * _met(cost.ns - period)
            beyond = max(beyond, gain - price * max(0, cost.ns - (_CLOSE if old else 0)))
        total += asked[m] * (beyond + share * _met(_MS))
    return min(100.0, total)
