"""Independent checkers of executables, offsets and certificates.

Nothing here shares code with the planners, the placers or the runtime that it checks.
"""

from tightrope.judge.bound import check_bound, lower_bound
from tightrope.judge.footprint import Interval, Walk
from tightrope.judge.offsets import check_offsets
from tightrope.judge.plan import Verdict, judge
from tightrope.judge.transfers import Transfer
from tightrope.judge.walk import walk_executable

__all__ = [
    "Interval",
    "Transfer",
    "Verdict",
    "Walk",
    "check_bound",
    "check_offsets",
    "judge",
    "lower_bound",
    "walk_executable",
]
