"""Check a placement of jobs on machines.

Idea        Sweep each machine by itself: at every instant the jobs on it take no more than it has, of any
            resource. Then derive the machine time, the peak and the bound anew.
Guarantee   Passes exactly when no machine is overfull, no job has a machine that is not there,
            and every figure of the plan is what the jobs say.
Complexity  O(n log n).
Gaps        Whether decisions looked into the future cannot be seen from a placement; tests cut inputs short.
"""

from collections.abc import Sequence

from tightrope.core import JudgeError
from tightrope_fleet.values.jobs import JobPlan
from tightrope_fleet.values.work import WorkItem


def check_jobs(items: Sequence[WorkItem], plan: JobPlan) -> None:
    """Refuse a placement that is wrong.

    Args:
        items: the jobs, in the order of the plan.
        plan: where they ran.

    Raises:
        JudgeError: names the machine or the figure.
    """
    if len(plan.hosts) != len(items):
        raise JudgeError(f"{len(items)} jobs, and {len(plan.hosts)} machines for them.")
    by_host: dict[int, list[WorkItem]] = {}
    for item, host in zip(items, plan.hosts, strict=True):
        if host < -1 or (plan.most_hosts and host >= plan.most_hosts):
            raise JudgeError(f"job {item.name!r:.60} runs on machine {host}; there are {plan.most_hosts}.")
        if host == -1 and not plan.most_hosts:
            raise JudgeError(f"job {item.name!r:.60} was refused, and machines are not limited.")
        if host >= 0:
            by_host.setdefault(host, []).append(item)
    spans: list[tuple[int, int]] = []
    for host, jobs in sorted(by_host.items()):
        _check_load(host, jobs, plan.capacity)
        spans += _busy(jobs)
    limit = max((item.end for item in items), default=0) if plan.until is None else plan.until
    time = sum(max(0, min(end, limit) - start) for start, end in spans)
    if time != plan.machine_time:
        raise JudgeError(f"the plan says {plan.machine_time} of machine time; its jobs take {time}.")
    if (peak := _most_at_once(spans)) != plan.peak:
        raise JudgeError(f"the plan says {plan.peak} machines at most; its jobs need {peak} at once.")
    placed = [item for item, host in zip(items, plan.hosts, strict=True) if host >= 0]
    bound = _bound(placed, plan.capacity, limit)
    if bound != plan.lower_bound:
        raise JudgeError(
            f"the plan says no placement takes less than {plan.lower_bound}; what follows is {bound}."
        )


def _check_load(host: int, jobs: Sequence[WorkItem], capacity: Sequence[int]) -> None:
    for resource, most in enumerate(capacity):
        changes = sorted(
            [(item.start, 1, item.size[resource]) for item in jobs]
            + [(item.end, 0, -item.size[resource]) for item in jobs]
        )
        level = 0
        for time, _, change in changes:
            level += change
            if level > most:
                raise JudgeError(
                    f"machine {host} holds {level} of resource {resource} at {time}; it has {most}."
                )


def _busy(jobs: Sequence[WorkItem]) -> list[tuple[int, int]]:
    """Stretches in which a machine holds a job, apart from each other."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((item.start, item.end) for item in jobs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _most_at_once(spans: Sequence[tuple[int, int]]) -> int:
    level = most = 0
    for _, change in sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]):
        level += change
        most = max(most, level)
    return most


def _bound(items: Sequence[WorkItem], capacity: Sequence[int], limit: int) -> int:
    """Integrate over time the machines that the most wanted resource takes."""
    changes: dict[int, list[int]] = {}
    for item in items:
        for time, sign in ((item.start, 1), (item.end, -1)):
            row = changes.setdefault(time, [0] * len(capacity))
            for resource, size in enumerate(item.size):
                row[resource] += sign * size
    times = sorted(changes)
    load = [0] * len(capacity)
    total = 0
    for at, time in enumerate(times):
        load = [a + b for a, b in zip(load, changes[time], strict=True)]
        until = min(limit, times[at + 1]) if at + 1 < len(times) else limit
        if until > time:
            total += (until - time) * max(
                (a + most - 1) // most for a, most in zip(load, capacity, strict=True)
            )
    return total
