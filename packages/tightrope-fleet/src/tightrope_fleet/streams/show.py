"""A run of streams for people: its trace, its promises, its picture."""

from tightrope_fleet.streams.score import StreamScore
from tightrope_fleet.values.streams import StreamMachine, StreamPlan, StreamRun, StreamScenario
from tightrope_fleet.values.work import Promise
from tightrope_shared.draw import Bar, Lane, WorkEvent, WorkTrace, draw_lanes


def stream_trace(
    scenario: StreamScenario, machine: StreamMachine, run: StreamRun, *, timed: bool = False
) -> WorkTrace:
    """List what ran and what was dropped, by start."""
    events = [
        WorkEvent(
            frame.start,
            frame.end,
            f"{scenario.models[frame.model].name} {frame.frame}",
            machine.processors[frame.processor].name if frame.processor >= 0 else "",
            "run" if frame.processor >= 0 else "drop" if frame.state == "dropped" else "wait",
        )
        for frame in sorted(run.frames, key=lambda f: (f.start, f.end, f.model, f.frame))
    ]
    return WorkTrace("timed" if timed else "simulated", "ns", tuple(events), run.seed)


def stream_promises(
    machine: StreamMachine,
    observed: StreamScore,
    run: StreamRun,
    *,
    plan: StreamPlan | None = None,
    least: float | None = None,
) -> tuple[Promise, ...]:
    """Hold limits against forecast and observation.

    Args:
        machine: where it ran; its arena is a hard limit.
        observed: the score of the run.
        run: every request.
        plan: what forecasts.
        least: score that has to be reached; None = nothing was asked.
    """
    return (
        Promise("score", "of 100", least, plan.score if plan else None, observed.total, at_least=True),
        Promise("arena", "bytes", machine.arena or None, plan.peak if plan else None, run.peak),
    )


def draw_streams(scenario: StreamScenario, machine: StreamMachine, run: StreamRun, *, title: str = "") -> str:
    """Draw a run as SVG: a lane per processor, and one for what was dropped; times in milliseconds."""
    rows: list[list[Bar]] = [[] for _ in range(len(machine.processors) + 1)]
    for frame in run.frames:
        name = scenario.models[frame.model].name
        if frame.state == "waiting":
            continue
        late = (frame.end - frame.deadline) / 1e6
        said = "dropped" if frame.processor < 0 else f"{late:+.3f} ms to its deadline"
        rows[frame.processor].append(
            Bar(frame.start / 1e6, frame.end / 1e6, name, f"{name}, frame {frame.frame}: {said}")
        )
    names = [processor.name for processor in machine.processors] + ["dropped"]
    return draw_lanes(
        [Lane(name, tuple(bars)) for name, bars in zip(names, rows, strict=True)],
        unit="ms",
        title=title or f"{scenario.name} on {machine.name}",
    )
