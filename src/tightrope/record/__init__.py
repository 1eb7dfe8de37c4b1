"""Traces: made from a plan, from a run, or from a profile of anybody's; saved, compared, exported."""

from tightrope.record.answers import Answers, TraceDiff, diff, explain, module_times
from tightrope.record.columns import dump, load, read, save
from tightrope.record.dry_run import DryRun, dry_run
from tightrope.record.eager import EagerRecording, record_eager, tree_of
from tightrope.record.export import to_chrome, to_snapshot
from tightrope.record.forecast import forecast
from tightrope.record.foreign import annotate
from tightrope.record.planned import Recording, record_run
from tightrope.record.slices import parse_profile, read_profile

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
