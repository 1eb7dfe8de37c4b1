"""Work over time: streams with deadlines, jobs with predicted ends, fleets of devices.

What they share are the values of `tightrope_fleet.values.work`; `tightrope_shared.draw` draws them.
"""

from tightrope_fleet.values.work import Availability, Host, Promise, WorkItem, broken, promise_table
from tightrope_shared.draw import WorkEvent, WorkTrace

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
