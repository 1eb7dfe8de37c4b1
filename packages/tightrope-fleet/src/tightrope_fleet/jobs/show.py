"""A placement of jobs for people: its trace, its promises, its pictures."""

from collections.abc import Sequence

from tightrope_fleet.values.jobs import JobPlan
from tightrope_fleet.values.work import Promise, WorkItem
from tightrope_shared.draw import Bar, Curve, Lane, WorkEvent, WorkTrace, draw_curves, draw_lanes

_MOST_LANES = 40
_MOST_BARS = 15_000


def job_trace(items: Sequence[WorkItem], plan: JobPlan) -> WorkTrace:
    """List every job with its machine; a refused one ends as it comes."""
    events = [
        WorkEvent(item.start, item.end, item.name, f"machine {host}")
        if host >= 0
        else WorkEvent(item.start, item.start, item.name, "", "refuse")
        for item, host in zip(items, plan.hosts, strict=True)
    ]
    return WorkTrace("simulated", "s", tuple(events), plan.seed)


def job_promises(plan: JobPlan, *, most_time: float | None = None) -> tuple[Promise, ...]:
    """Hold limits against what was observed: machines, machine time, refused jobs."""
    return (
        Promise("machines", "", plan.most_hosts or None, None, plan.peak),
        Promise("refused jobs", "", 0 if plan.most_hosts else None, None, plan.num_refused),
        Promise("machine time", "of the bound", most_time, None, plan.ratio),
    )


def draw_jobs(items: Sequence[WorkItem], plan: JobPlan, *, title: str = "") -> str:
    """Draw which machine ran which job when: a lane per machine, the first 40, as SVG.

    Nothing is drawn after the time until which machine time counts.
    """
    rows: list[list[Bar]] = [[] for _ in range(min(_MOST_LANES, max(plan.hosts, default=-1) + 1))]
    count = 0
    for item, host in zip(items, plan.hosts, strict=True):
        end = item.end if plan.until is None else min(item.end, plan.until)
        if 0 <= host < len(rows) and count < _MOST_BARS and item.start < end:
            share = max(size / most for size, most in zip(item.size, plan.capacity, strict=True))
            text = f"{item.name}: [{item.start}, {item.end}), {100 * share:.0f} % of a machine"
            rows[host].append(Bar(item.start / 3600, end / 3600, f"{_tenth(share)} of a machine", text))
            count += 1
    lanes = [Lane(f"machine {number}", tuple(bars)) for number, bars in enumerate(rows)]
    return draw_lanes(lanes, unit="h", title=title or "Jobs by machine", row=14)


def draw_occupancy(items: Sequence[WorkItem], plan: JobPlan, *, title: str = "") -> str:
    """Draw over time how many machines are in use, and how many the largest load takes, as SVG."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for item, host in zip(items, plan.hosts, strict=True):
        if host < 0:
            continue
        merged = spans.setdefault(host, [])
        if merged and item.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], item.end))
        else:
            merged.append((item.start, item.end))
    used = [
        (at, sign)
        for merged in spans.values()
        for start, end in merged
        for at, sign in ((start, 1), (end, -1))
    ]
    loads = [
        (at, sign * size / most)
        for r, most in enumerate(plan.capacity)
        if r == _scarcest(items, plan.capacity)
        for item in items
        for at, sign, size in ((item.start, 1, item.size[r]), (item.end, -1, item.size[r]))
    ]
    named = (("machines in use", used), ("load of the scarcest resource", loads))
    curves = [Curve(name, _steps(changes, plan.until)) for name, changes in named]
    return draw_curves(curves, unit="h", label="machines", title=title or "Occupancy")


def _scarcest(items: Sequence[WorkItem], capacity: Sequence[int]) -> int:
    totals = [sum(i.size[r] * (i.end - i.start) for i in items) / most for r, most in enumerate(capacity)]
    return max(range(len(totals)), key=totals.__getitem__, default=0)


def _steps(changes: Sequence[tuple[int, float]], until: int | None) -> tuple[tuple[float, float], ...]:
    """Turn changes into points of a curve, at most some thousand."""
    level, points = 0.0, list[tuple[float, float]]()
    for at, change in sorted(changes):
        if until is not None and at > until:
            break
        points.append((at / 3600, max(0.0, level)))
        level += change
        points.append((at / 3600, max(0.0, level)))
    if until is not None and points:
        points.append((until / 3600, points[-1][1]))
    stride = max(1, len(points) // 4000)
    return (*points[:-1:stride], *points[-1:])


def _tenth(share: float) -> str:
    return f"{min(10, int(share * 10) + 1) * 10} %"
