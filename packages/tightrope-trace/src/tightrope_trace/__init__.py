"""Traces of anybody: profiles that are read and told by modules, eager steps, changes, exports.

What is read and answered follows the schema of `tightrope.core.Trace`; `tightrope.record` forecasts a
trace from a plan, and this package has the file that traces are kept in.

    with tightrope_trace.record_eager(model) as recording: ...
    with tightrope_trace.record_run(planned_model) as recording: ...
    slices = tightrope_trace.read_profile("profile.json")
    trace = tightrope_trace.annotate(slices, run=tightrope_trace.dry_run(model, inputs))

What runs a model is imported when it is first used: it needs torch.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily
from tightrope_trace.answers import Answers, explain
from tightrope_trace.changes import TraceDiff, diff
from tightrope_trace.columns import dump, load, read, save
from tightrope_trace.export import to_chrome, to_snapshot
from tightrope_trace.modules import module_times
from tightrope_trace.slices import parse_profile, read_profile

if TYPE_CHECKING:
    from tightrope_trace.eager import EagerRecording, record_eager, tree_of
    from tightrope_trace.foreign import annotate
    from tightrope_trace.planned import Recording, record_run
    from tightrope_trace.without_values import DryRun, dry_run

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
