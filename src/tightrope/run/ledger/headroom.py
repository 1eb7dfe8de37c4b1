"""How many bytes to leave beside a plan for the caller's code between the parts of a step.

Idea        A loss from the outputs, eager code between graphs, the inputs of later calls: none of it is
            captured, so its need is learned: at first a generous guess, then the most that a step took
            between its parts, or would have taken. Where no plan fits beside that, what the caller held
            while parts ran, and at last the gradients of the outputs alone.
Guarantee   What was seen never shrinks, so a budget that is refused once stays refused, and one in which a
            step went all the way is never refused because of what was seen in it: pending forwards drop
            what can be computed again where code between parts lacks room.
Gaps        The first step may run out where the budget has no room for what its code takes.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from tightrope.core import Bytes

_GUESSES = (4, 2)
"""Multiples of the gradients that the outputs get. A mean of squares takes 4, a cross entropy 2."""
_FIRST = 4
"""Multiple of its first large request that a loss takes."""
_KEPT = 2
"""The same of what the loss of another forward keeps for the backward."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What was seen of the caller's code, and what to leave free because of it.

    Attributes:
        gradients: bytes of the gradients of outputs that are no scalars.
        tangents: bytes of the gradients of all outputs, which always come on top.
        peak: most bytes that the caller's code was seen to take, or to want, between parts.
        held: most bytes that it held while a part ran.
        seen: whether a step went all the way.
        outputs: bytes of outputs that are no scalars, which the caller may hold.
    """

    gradients: Bytes = 0
    tangents: Bytes = 0
    peak: Bytes = 0
    held: Bytes = 0
    seen: bool = False
    outputs: Bytes = 0

    def candidates(self) -> tuple[Bytes, ...]:
        """List what to leave free: the best first, the least that will do last.

        >>> Headroom(100, 164).candidates()
        (564, 364, 164)
        >>> Headroom(100, 164).observe_peak(1000, 300).candidates()
        (1000, 300, 164)
        """
        guesses = () if self.seen else tuple(self.tangents + k * self.gradients for k in _GUESSES)
        known = (self.peak, self.held, *guesses)
        return (*sorted({size for size in known if size > self.tangents}, reverse=True), self.tangents)

    @property
    def needed(self) -> Bytes:
        """The least that will do."""
        return self.tangents

    @property
    def wanted(self) -> Bytes:
        """What the caller's code takes as far as is known: a guess before a step went all the way."""
        return self.candidates()[0]

    def observe_peak(self, peak: Bytes, held: Bytes) -> "Headroom":
        """Learn from a step that went all the way."""
        return replace(self, peak=max(self.peak, peak), held=max(self.held, held), seen=True)

    def observe_oom(self, size: Bytes) -> "Headroom":
        """Learn from a step that ran out when its code would have taken ``size``."""
        return replace(self, peak=max(self.peak, size))


class ByLoop(NamedTuple):
    """Budgets of a step by what its loop does with gradients.

    Attributes:
        keeping: in a loop of any order, which may keep them until the next forward is over.
        dropping: in a loop that drops them before each forward.
    """

    keeping: Bytes = 0
    dropping: Bytes = 0

    def or_more(self, other: "ByLoop") -> "ByLoop":
        """Take the larger ones.

        >>> ByLoop(3, 1).or_more(ByLoop(2, 2))
        ByLoop(keeping=3, dropping=2)
        """
        return ByLoop(*map(max, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class CallerSoFar:
    """A step under way, as code of the caller is refused memory.

    Attributes:
        grown: most bytes that such code took so far.
        earlier: most that it took in an earlier step that went all the way; 0 = there was none.
        coming: bytes of the optimizer's state that is not there yet.
        forwards: number that wait for the backward: a loss may be made of each.
    """

    grown: Bytes
    earlier: Bytes
    coming: Bytes
    forwards: int = 1

    def after(self, request: Bytes) -> Bytes:
        """Return what is likely to be taken after a request that was refused.

        >>> CallerSoFar(200, 700, 0).after(100), CallerSoFar(0, 0, 0, forwards=2).after(100)
        (400, 600)
        """
        if self.earlier > self.grown + request:
            return self.earlier - self.grown - request
        if self.grown >= request:
            return request + self.grown
        return (_FIRST + _KEPT * (self.forwards - 1)) * request
