"""How many bytes to leave beside a plan for the caller's code between the parts of a step.

Idea        A loss from the outputs, eager code between graphs, the inputs of later calls: none of it is
            captured, so its need is learned: at first a generous guess, taken back where no plan fits
            beside it; then what a finished step took, or what a step that ran out would have taken.
Guarantee   What is left free is never less than the most that was seen to be needed, until no plan
            fits beside it.
Gaps        The first step may run out where the budget has no room for the guess.
"""

from dataclasses import dataclass, replace

from tightrope.core import Bytes

_GUESSES = (4, 2)
"""Multiples of the gradients that the outputs get. A mean of squares takes 4, a cross entropy 2."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What was seen of the caller's code, and what to leave free because of it.

    Attributes:
        gradients: bytes of the gradients of outputs that are no scalars.
        tangents: bytes of the gradients of all outputs, which always come on top.
        needed: the least that will do, as far as is known.
        seen: whether a step went all the way.
        guesses: what to try to leave, the best first.
    """

    gradients: Bytes = 0
    tangents: Bytes = 0
    needed: Bytes = 0
    seen: bool = False
    guesses: tuple[Bytes, ...] = ()

    @staticmethod
    def of(gradients: Bytes, *, tangents: Bytes = 0) -> "Headroom":
        """Begin with guesses: multiples of the gradients of outputs.

        >>> Headroom.of(100, tangents=164).candidates()
        (564, 364, 164)
        """
        guesses = tuple(tangents + k * gradients for k in _GUESSES)
        return Headroom(gradients, tangents, tangents, guesses=guesses)

    def candidates(self) -> tuple[Bytes, ...]:
        """List what to leave free: the best first, the least that will do last."""
        return (*(guess for guess in self.guesses if guess > self.needed), self.needed)

    def observe_peak(self, size: Bytes) -> "Headroom":
        """Learn from a step that went all the way."""
        return replace(self, needed=size if not self.seen else max(self.needed, size), seen=True, guesses=())

    def observe_oom(self, size: Bytes) -> "Headroom":
        """Learn from a step that ran out when it would have held ``size``: it may need more still."""
        needed = max(self.needed, size)
        return replace(self, needed=needed, guesses=tuple(sorted({2 * needed, *self.guesses}, reverse=True)))

    def forget(self) -> "Headroom":
        """Guess again: no plan fits beside what was seen, and the next step may need less."""
        return Headroom.of(self.gradients, tangents=self.tangents)
