"""Work over time: streams with deadlines, jobs with predicted ends, fleets of devices.

What they share are the values of `tightrope.core.work`; `tightrope.draw` draws them.
"""

from tightrope.core.work import (
    Availability,
    Host,
    Promise,
    WorkEvent,
    WorkItem,
    WorkTrace,
    broken,
    promise_table,
)

__all__ = [
    "Availability",
    "Host",
    "Promise",
    "WorkEvent",
    "WorkItem",
    "WorkTrace",
    "broken",
    "promise_table",
]
