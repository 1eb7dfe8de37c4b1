"""From a plan to what runs: instructions over buffers, and the figures that follow from them."""

from tightrope.lower.announce import Groups, announced, groups
from tightrope.lower.contract import contract
from tightrope.lower.judged import Lowered, lowered, problems, walked
from tightrope.lower.lifetimes import charged_sizes, largest_sum, outside_flags, peak_bytes, timeline
from tightrope.lower.lowering import lower, place_at, planned
from tightrope.lower.simulate import Figures, simulate
from tightrope.lower.writes import with_writes, without_writes

__all__ = [
    "Figures",
    "Groups",
    "Lowered",
    "announced",
    "charged_sizes",
    "contract",
    "groups",
    "largest_sum",
    "lower",
    "lowered",
    "outside_flags",
    "peak_bytes",
    "place_at",
    "planned",
    "problems",
    "simulate",
    "timeline",
    "walked",
    "with_writes",
    "without_writes",
]
