"""Traces: made from a plan, and asked."""

from tightrope.core.lazy import lazily
from tightrope.record.answers import Answers, explain
from tightrope.record.forecast import forecast

__getattr__ = lazily(
    __name__,
    {},
    moved={
        "trace": (
            "DryRun", "EagerRecording", "Recording", "TraceDiff", "annotate", "diff", "dry_run", "dump",
            "load", "module_times", "parse_profile", "read", "read_profile", "record_eager", "record_run",
            "save", "to_chrome", "to_snapshot", "tree_of",
        )
    },
)  # fmt: skip

__all__ = [
    "Answers",
    "explain",
    "forecast",
]
