"""Independent checkers of schedules, offsets, certificates, traces and gradients.

Nothing here shares code with the planners, the placers or the runtime that it checks. The gradient
check needs torch and is imported by its own name, ``tightrope.judge.gradients``.
"""

from tightrope.judge.blocks import check_blocks
from tightrope.judge.bound import check_bound, lower_bound
from tightrope.judge.ledger import Interval
from tightrope.judge.offsets import check_offsets
from tightrope.judge.paging import Window
from tightrope.judge.plan import Verdict, judge_plan, problems
from tightrope.judge.safety import Tenant, check_sharing, check_uses
from tightrope.judge.schedule import Replay, replay_schedule
from tightrope.judge.trace import TraceComparison, check_trace, compare_traces

__all__ = [
    "Interval",
    "Replay",
    "Tenant",
    "TraceComparison",
    "Verdict",
    "Window",
    "check_blocks",
    "check_bound",
    "check_offsets",
    "check_sharing",
    "check_trace",
    "check_uses",
    "compare_traces",
    "judge_plan",
    "lower_bound",
    "problems",
    "replay_schedule",
]
