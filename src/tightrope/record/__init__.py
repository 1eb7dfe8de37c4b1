"""Traces: made from a plan; saved and asked."""

from tightrope.core.lazy import lazily
from tightrope.record.answers import Answers, explain, module_times
from tightrope.record.columns import dump, load, read, save
from tightrope.record.forecast import forecast

__getattr__ = lazily(
    __name__,
    {},
    moved={
        "trace": (
            "DryRun", "EagerRecording", "Recording", "TraceDiff", "annotate", "diff", "dry_run",
            "parse_profile", "read_profile", "record_eager", "record_run", "to_chrome",
            "to_snapshot", "tree_of",
        )
    },
)  # fmt: skip

__all__ = [
    "Answers",
    "dump",
    "explain",
    "forecast",
    "load",
    "module_times",
    "read",
    "save",
]
