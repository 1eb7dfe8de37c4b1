"""State the limit, get a plan, run it, and see the proof.

    model = tightrope.compile(model, budget="8GiB")     # any loop; same losses, same gradients

`compile` holds the training steps of a model to a number of bytes; `replay` does so for any loop
whose allocations repeat, without a capture; `capture` and `plan` are the parts, for a closer look.

``tightrope.plan`` and ``tightrope.capture`` are these two functions. The packages of the same names
are imported by ``from``, as in ``from tightrope.plan import solve``.
"""

from tightrope.capture.api import capture
from tightrope.core import (
    BudgetSyntaxError,
    CaptureError,
    FingerprintError,
    Graph,
    InfeasibleError,
    JudgeError,
    Limits,
    Machine,
    NativeError,
    Plan,
    PlanFileError,
    TightropeError,
    VerificationError,
    format_bytes,
    parse_bytes,
)
from tightrope.plan.api import plan
from tightrope.run.compile import compile
from tightrope.run.replay import Replay, replay
from tightrope.run.report import Report, draw_with, report
from tightrope.run.saved import SavedStep, load
from tightrope.run.saving import save
from tightrope.run.step import TrainingStep, step

__version__ = "0.1.0"


def _page(graph: Graph, plan: Plan) -> str:
    from tightrope.record import forecast
    from tightrope.view import page

    return page(forecast(graph, plan))


draw_with(_page)

__all__ = [
    "BudgetSyntaxError",
    "CaptureError",
    "FingerprintError",
    "Graph",
    "InfeasibleError",
    "JudgeError",
    "Limits",
    "Machine",
    "NativeError",
    "Plan",
    "PlanFileError",
    "Replay",
    "Report",
    "SavedStep",
    "TightropeError",
    "TrainingStep",
    "VerificationError",
    "capture",
    "compile",
    "format_bytes",
    "load",
    "parse_bytes",
    "plan",
    "replay",
    "report",
    "save",
    "step",
]
