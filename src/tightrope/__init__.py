"""State the limit, get a plan, run it, and see the proof.

    model = tightrope.compile(model, budget="8GiB")     # any loop; same losses, same gradients

`compile` holds the training steps of a model to a number of bytes; `replay` does so for any loop
whose allocations repeat, without a capture; `capture` and `plan` are the parts, for a closer look.

``tightrope.plan`` and ``tightrope.capture`` are these two functions. The packages of the same names
are imported by ``from``, as in ``from tightrope.plan import solve``. Names are imported when they are
first used: the command line answers without waiting for torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tightrope.core import (
    BudgetSyntaxError,
    CaptureError,
    FingerprintError,
    Graph,
    InfeasibleError,
    IntegrityError,
    JudgeError,
    Limits,
    Machine,
    NativeError,
    PagingError,
    Plan,
    PlanFileError,
    ShapeError,
    TightropeError,
    UnsupportedOpError,
    VerificationError,
    format_bytes,
    parse_bytes,
)
from tightrope.core.collector import collector_paused
from tightrope.core.version import VERSION
from tightrope.run.drawing import draw_with

if TYPE_CHECKING:
    from tightrope.capture.api import capture
    from tightrope.native.hook.refused import OutOfBudgetError
    from tightrope.plan.api import plan
    from tightrope.run.compile import compile
    from tightrope.run.evict.context import Eviction, evict
    from tightrope.run.load import SavedStep, load
    from tightrope.run.report import Report, report
    from tightrope.run.save import save
    from tightrope.run.session.replay import Replay, replay
    from tightrope.run.step import TrainingStep, step

__version__ = VERSION

_WHERE: Final = {
    "Eviction": "run.evict.context",
    "OutOfBudgetError": "native.hook.refused",
    "Replay": "run.session.replay",
    "Report": "run.report",
    "SavedStep": "run.load",
    "TrainingStep": "run.step",
    "capture": "capture.api",
    "compile": "run.compile",
    "evict": "run.evict.context",
    "load": "run.load",
    "plan": "plan.api",
    "replay": "run.session.replay",
    "report": "run.report",
    "save": "run.save",
    "step": "run.step",
}
"""Public names that need torch or a planner, and where they are."""


def _found(name: str) -> Any:
    with collector_paused():
        return getattr(import_module(f"tightrope.{_WHERE[name]}"), name)


class _Surface(ModuleType):
    """The public surface: imports names when they are used, keeps two above packages of that name."""

    def __getattr__(self, name: str) -> Any:
        if name == "parallel":
            raise AttributeError(
                "tightrope.parallel is the distribution tightrope-ranks now: pip install 'tightrope[ranks]' "
                "and import tightrope_ranks."
            )
        if name not in _WHERE:
            raise AttributeError(f"module 'tightrope' has no attribute {name!r}")
        value = _found(name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_WHERE})

    @property
    def capture(self) -> Any:
        """The function; importing the package of the same name changes nothing here."""
        return _found("capture")

    @capture.setter
    def capture(self, package: ModuleType) -> None: ...

    @property
    def plan(self) -> Any:
        """The function; importing the package of the same name changes nothing here."""
        return _found("plan")

    @plan.setter
    def plan(self, package: ModuleType) -> None: ...


sys.modules[__name__].__class__ = _Surface


def _page(graph: Graph, plan: Plan, machine: Machine | None) -> str:
    from tightrope.plan import plan_curve
    from tightrope.record import forecast
    from tightrope.view import page

    others = (one for one in plan_curve(graph, seconds=_CURVE_SECONDS) if one.budget != plan.budget)
    return page(forecast(graph, plan, machine=machine, others=tuple(others)))


_CURVE_SECONDS = 2.0
"""Of search for the plans at other budgets that a page prices fewer bytes with."""


draw_with(_page)

__all__ = [
    "BudgetSyntaxError",
    "CaptureError",
    "Eviction",
    "FingerprintError",
    "Graph",
    "InfeasibleError",
    "IntegrityError",
    "JudgeError",
    "Limits",
    "Machine",
    "NativeError",
    "OutOfBudgetError",
    "PagingError",
    "Plan",
    "PlanFileError",
    "Replay",
    "Report",
    "SavedStep",
    "ShapeError",
    "TightropeError",
    "TrainingStep",
    "UnsupportedOpError",
    "VerificationError",
    "capture",
    "compile",
    "evict",
    "format_bytes",
    "load",
    "parse_bytes",
    "plan",
    "replay",
    "report",
    "save",
    "step",
]
