"""The one exception family.

A message says what was asked, what is possible, and the next step.
"""


class TightropeError(Exception):
    """Any error that this package raises on purpose."""


class BudgetSyntaxError(TightropeError, ValueError):
    """A budget that cannot be read as an amount of memory."""


class InfeasibleError(TightropeError):
    """No plan within the limits was found, or none can exist.

    Attributes:
        asked: total bytes asked for.
        smallest_found: total bytes of the smallest feasible plan found, or None.
        lower_bound: total bytes below which no plan exists (proved).
        op: name, module path and source line of the op that sets the bound.
        by_eviction: a guess at the bytes in which level E runs the step; 0 = unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        asked: int = 0,
        smallest_found: int | None = None,
        lower_bound: int = 0,
        op: str = "",
    ) -> None:
        super().__init__(message)
        self.asked, self.smallest_found, self.lower_bound, self.op = asked, smallest_found, lower_bound, op
        self.by_eviction = 0


class ShapeError(TightropeError):
    """A call is larger than every shape that was declared.

    Attributes:
        smallest_found: total bytes of the smallest budget found that admits it, or None.
    """

    def __init__(self, message: str, *, smallest_found: int | None = None) -> None:
        super().__init__(message)
        self.smallest_found = smallest_found


class CaptureError(TightropeError):
    """The training step could not be turned into a graph."""


class UnsupportedOpError(CaptureError):
    """An op of a captured step has no kernel where the step is to run.

    Attributes:
        op: target, module path and source line of the op.
    """

    def __init__(self, message: str, *, op: str = "") -> None:
        super().__init__(message)
        self.op = op


class PlanFileError(TightropeError):
    """A file that is not a valid plan, graph or trace of this version."""


class FingerprintError(TightropeError):
    """A plan made for another graph, machine or version."""


class PagingError(TightropeError):
    """A page could not be written, or did not come back as it was; nothing was returned or updated."""


class VerificationError(TightropeError):
    """The planned step and its reference gave different results."""


class JudgeError(TightropeError):
    """An independent checker refused a schedule, an offset table, a certificate or a trace."""


class RankError(TightropeError):
    """Another rank or node ended, left the step, or did not answer in time."""


class IntegrityError(TightropeError):
    """The code that is there is not the code that was locked or planned."""


class NativeError(TightropeError):
    """The native part could not be built or loaded, or was used against its rules."""
