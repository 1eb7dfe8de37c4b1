"""Traces: made from a plan or from a run of one; saved and asked.

What runs a model is imported when it is first used: it needs torch.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily
from tightrope.record.answers import Answers, explain, module_times
from tightrope.record.columns import dump, load, read, save
from tightrope.record.forecast import forecast

if TYPE_CHECKING:
    from tightrope.record.planned import Recording, record_run

__getattr__ = lazily(
    __name__,
    {"Recording": "planned", "record_run": "planned"},
    moved={
        "trace": (
            "DryRun", "EagerRecording", "TraceDiff", "annotate", "diff", "dry_run", "parse_profile",
            "read_profile", "record_eager", "to_chrome", "to_snapshot", "tree_of",
        )
    },
)  # fmt: skip

__all__ = [
    "Answers",
    "Recording",
    "dump",
    "explain",
    "forecast",
    "load",
    "module_times",
    "read",
    "record_run",
    "save",
]
