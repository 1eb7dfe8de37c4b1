"""Independent checkers of executables, offsets, certificates and gradients.

Nothing here shares code with the planners, the placers or the runtime that it checks. The checks of
gradients and of values need torch and are imported by their own names, ``tightrope.judge.gradients``
and ``tightrope.judge.values``.
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
