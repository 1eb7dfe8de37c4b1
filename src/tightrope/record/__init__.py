"""Traces that plans forecast."""

from tightrope.core.lazy import lazily
from tightrope.record.forecast import forecast

__getattr__ = lazily(
    __name__,
    {},
    moved={
        "trace": (
            "Answers", "DryRun", "EagerRecording", "Recording", "TraceDiff", "annotate", "diff", "dry_run",
            "dump", "explain", "load", "module_times", "parse_profile", "read", "read_profile",
            "record_eager", "record_run", "save", "to_chrome", "to_snapshot", "tree_of",
        )
    },
)  # fmt: skip

__all__ = [
    "forecast",
]
