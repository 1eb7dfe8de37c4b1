"""What every placement takes at least.

Idea        At any instant, the resource that is asked for most, in machines, rounded up, is a number of
            machines that cannot be undercut. Add that up over time.
Source      The integral bound of dynamic bin packing, per resource (Coffman, Garey and Johnson, 1983).
Guarantee   A lower bound for jobs that may be placed anywhere, exact integers.
Complexity  O(n log n).
Gaps        Resources are looked at one by one, and whole jobs are taken as divisible.
"""

from collections.abc import Sequence

from tightrope_fleet.values.work import WorkItem


def machine_time_bound(items: Sequence[WorkItem], capacity: Sequence[int], until: int | None = None) -> int:
    """Add up the machines that it takes at every instant.

    Args:
        items: all jobs.
        capacity: of a machine, per resource.
        until: count time before this only.

    Example:
        >>> machine_time_bound([WorkItem("a", (3,), 0, 10), WorkItem("b", (3,), 5, 10)], (4,))
        15
    """
    events: list[tuple[int, int, tuple[int, ...]]] = []
    for item in items:
        end = item.end if until is None else min(item.end, until)
        if item.start < end:
            events += [(item.start, 1, item.size), (end, -1, item.size)]
    events.sort(key=lambda event: event[0])
    load = [0] * len(capacity)
    total, last = 0, events[0][0] if events else 0
    for time, sign, size in events:
        if time > last:
            total += (time - last) * max(-(-used // most) for used, most in zip(load, capacity, strict=True))
            last = time
        load = [used + sign * one for used, one in zip(load, size, strict=True)]
    return total
