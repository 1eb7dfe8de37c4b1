"""Traces: made from a plan, from a run, or from a profile of anybody's; saved, compared, exported.

What runs a model is imported when it is first used: it needs torch.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily
from tightrope.record.answers import Answers, TraceDiff, diff, explain, module_times
from tightrope.record.columns import dump, load, read, save
from tightrope.record.export import to_chrome, to_snapshot
from tightrope.record.forecast import forecast
from tightrope.record.slices import parse_profile, read_profile

if TYPE_CHECKING:
    from tightrope.record.eager import EagerRecording, record_eager, tree_of
    from tightrope.record.foreign import annotate
    from tightrope.record.planned import Recording, record_run
    from tightrope.record.without_values import DryRun, dry_run

__getattr__ = lazily(
    __name__,
    {
        "DryRun": "without_values",
        "EagerRecording": "eager",
        "Recording": "planned",
        "annotate": "foreign",
        "dry_run": "without_values",
        "record_eager": "eager",
        "record_run": "planned",
        "tree_of": "eager",
    },
)

__all__ = [
    "Answers",
    "DryRun",
    "EagerRecording",
    "Recording",
    "TraceDiff",
    "annotate",
    "diff",
    "dry_run",
    "dump",
    "explain",
    "forecast",
    "load",
    "module_times",
    "parse_profile",
    "read",
    "read_profile",
    "record_eager",
    "record_run",
    "save",
    "to_chrome",
    "to_snapshot",
    "tree_of",
]
