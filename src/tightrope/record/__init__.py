"""Traces: made from a plan or from a run of one; saved and asked.

What runs a model is imported when it is first used: it needs torch.
"""

from typing import TYPE_CHECKING, Any, Final

from tightrope.core.lazy import lazily
from tightrope.record.answers import Answers, explain, module_times
from tightrope.record.columns import dump, load, read, save
from tightrope.record.forecast import forecast

if TYPE_CHECKING:
    from tightrope.record.planned import Recording, record_run

_MOVED: Final = frozenset(
    ("DryRun", "EagerRecording", "TraceDiff", "annotate", "diff", "dry_run", "parse_profile", "read_profile",
     "record_eager", "to_chrome", "to_snapshot", "tree_of")
)  # fmt: skip
_found = lazily(__name__, {"Recording": "planned", "record_run": "planned"})


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        raise AttributeError(
            f"tightrope.record.{name} is of tightrope-trace now: pip install 'tightrope[trace]', and take it "
            "from tightrope_trace."
        )
    return _found(name)


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
