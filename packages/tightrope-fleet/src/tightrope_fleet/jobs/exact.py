"""The placement with the least machine time, of few jobs whose ends are known.

Idea        Jobs by start; each goes to one of the machines in use so far or to a new one. Putting a job on a
            machine never shortens any machine's time, so a branch ends where the time so far is no less than
            that of the best placement found. Greedy choices come first.
Source      Branch and bound over set partitions.
Guarantee   The least machine time of all placements.
Complexity  Bell numbers at worst; refused beyond 14 jobs.
Gaps        Small inputs alone.
"""

from collections.abc import Sequence

from tightrope.core import TightropeError
from tightrope_fleet.jobs.bound import machine_time_bound
from tightrope_fleet.values.jobs import JobPlan, check_items
from tightrope_fleet.values.work import WorkItem

MOST_JOBS_EXACT = 14


def best_placement(items: Sequence[WorkItem], capacity: Sequence[int]) -> JobPlan:
    """Place at most 14 jobs with known ends in the least machine time.

    Raises:
        TightropeError: there are more, or a job is malformed.

    Example:
        >>> jobs = [WorkItem("a", (2,), 0, 10), WorkItem("b", (2,), 0, 90), WorkItem("c", (2,), 1, 9)]
        >>> best_placement(jobs, (4,)).machine_time
        98
    """
    jobs, size = tuple(items), tuple(capacity)
    check_items(jobs, size)
    if len(jobs) > MOST_JOBS_EXACT:
        raise TightropeError(
            f"{len(jobs)} jobs: the exact method takes at most {MOST_JOBS_EXACT}; use place_jobs."
        )
    search = _LeastTime(jobs, size)
    search.extend([], 0)
    hosts = search.chosen
    return JobPlan(
        capacity=size,
        hosts=hosts,
        until=None,
        machine_time=search.least,
        lower_bound=machine_time_bound(jobs, size),
        peak=_peak(jobs, hosts),
        policy="exact",
    )


class _LeastTime:
    def __init__(self, jobs: Sequence[WorkItem], capacity: Sequence[int]) -> None:
        self.jobs, self.capacity = jobs, capacity
        self.least = sum(job.end - job.start for job in jobs) + 1
        self.chosen: tuple[int, ...] = ()

    def extend(self, groups: list[list[int]], total: int) -> None:
        at = sum(map(len, groups))
        if total >= self.least:
            return
        if at == len(self.jobs):
            self.least = total
            place = {job: number for number, group in enumerate(groups) for job in group}
            self.chosen = tuple(place[job] for job in range(at))
            return
        job = self.jobs[at]
        options = [
            (self.longer(group, job), number) for number, group in enumerate(groups) if self.fits(group, job)
        ]
        for more, number in sorted([*options, (job.end - job.start, len(groups))]):
            if number == len(groups):
                groups.append([at])
            else:
                groups[number].append(at)
            self.extend(groups, total + more)
            groups[number].pop()
            if not groups[number]:
                groups.pop()

    def fits(self, group: Sequence[int], job: WorkItem) -> bool:
        """Whether a job that starts last has room: those that still run take most as it starts."""
        running = [self.jobs[one].size for one in group if self.jobs[one].end > job.start]
        return all(
            sum(size[r] for size in running) + job.size[r] <= most for r, most in enumerate(self.capacity)
        )

    def longer(self, group: Sequence[int], job: WorkItem) -> int:
        """Time that a job adds to a machine on which no job started later."""
        last = max(self.jobs[one].end for one in group)
        return max(0, job.end - max(job.start, last))


def _peak(jobs: Sequence[WorkItem], hosts: Sequence[int]) -> int:
    return max(
        (
            len({h for other, h in zip(jobs, hosts, strict=True) if other.start <= job.start < other.end})
            for job in jobs
        ),
        default=0,
    )
