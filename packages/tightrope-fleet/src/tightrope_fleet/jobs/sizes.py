"""How large should a job be? Smaller but longer, or larger but shorter.

Idea        A training step planned for fewer bytes takes longer. Each plan of a curve of budgets is a way to
            run the same job: bytes on a machine for a time. On a shared machine, what counts is machine time:
            the share of the machine that the job blocks (by its scarcest resource), times how long. Take the
            choice with the least, among those that end in time.
Source      Our own: the memory plans are `tightrope.plan`'s.
Guarantee   The least product of share and time among the choices that meet bytes and deadline.
Complexity  O(choices).
Gaps        The share is blocked in full; whether others fill the rest is for the placement to see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, InfeasibleError, TightropeError


@dataclass(frozen=True, slots=True)
class JobShape:
    """One way to run a job.

    Attributes:
        bytes: that it takes of the machine's memory.
        seconds: from start to end.
        others: shares of the machine's other resources that it takes, such as (0.25,) for two of eight GPUs.
    """

    bytes: Bytes
    seconds: float
    others: tuple[float, ...] = ()

    def cost(self, memory: Bytes) -> float:
        """Machine seconds that it blocks on a machine with that memory."""
        return max(self.bytes / memory, *self.others, 0.0) * self.seconds


def choose_shape(shapes: Sequence[JobShape], *, memory: Bytes, deadline: float | None = None) -> JobShape:
    """Choose how to run a job.

    Args:
        shapes: ways to run it, such as a plan per budget.
        memory: bytes of a machine.
        deadline: seconds in which it has to end; None = any.

    Raises:
        TightropeError: there is no shape, or one cannot be.
        InfeasibleError: none fits the memory in time; says the smallest and the fastest.

    Example:
        >>> small, large = JobShape(40, 130.0), JobShape(80, 100.0)
        >>> choose_shape([small, large], memory=100) == small
        True
        >>> choose_shape([small, large], memory=100, deadline=120) == large
        True
    """
    if not shapes or memory <= 0:
        raise TightropeError(
            f"{len(shapes)} shapes, memory={memory}: give ways to run the job and bytes above 0."
        )
    for shape in shapes:
        if shape.bytes < 0 or not shape.seconds > 0 or any(not 0 <= share <= 1 for share in shape.others):
            raise TightropeError(
                f"{shape}: give bytes of at least 0, seconds above 0, and shares from 0 to 1."
            )
    fitting = [s for s in shapes if s.bytes <= memory and (deadline is None or s.seconds <= deadline)]
    if not fitting:
        smallest, fastest = min(s.bytes for s in shapes), min(s.seconds for s in shapes)
        raise InfeasibleError(
            f"no way to run the job in {memory} "
            f"bytes{'' if deadline is None else f' within {deadline:g} s'}: the "
            f"smallest takes {smallest} bytes, the fastest {fastest:g} s. Take a larger machine or more "
            "time.",
            asked=memory,
            smallest_found=smallest,
        )
    return min(fitting, key=lambda shape: (shape.cost(memory), shape.bytes))
