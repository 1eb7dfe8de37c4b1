"""How much to leave free for the user's code between forward and backward: a loss from the outputs.

Idea        That code is not captured, so its need is learned: at first a generous guess, taken back
            where no plan fits beside it; then what a finished step took, or what a step that ran out
            would have taken.
Guarantee   What is left free is never less than the most that was seen to be needed, until no plan
            fits beside it.
Gaps        The first step may run out where the budget has no room for the guess.
"""

from tightrope.core import Bytes

_GUESSES = (4, 2)
"""Multiples of the gradients that the outputs get. A mean of squares takes 4, a cross entropy 2."""


class Between:
    """The bytes beside a plan that the user's code may take, gradients of the outputs aside.

    Attributes:
        needed: the least that will do, as far as is known.
        seen: whether a step went all the way from forward to backward.
    """

    def __init__(self, gradients: Bytes) -> None:
        self.needed: Bytes = 0
        self.seen = False
        self._gradients = gradients
        self._guesses = tuple(times * gradients for times in _GUESSES)

    def rooms(self) -> tuple[Bytes, ...]:
        """List what to leave free: the best first, the least that will do last."""
        return (*(guess for guess in self._guesses if guess > self.needed), self.needed)

    def took(self, size: Bytes) -> None:
        """Learn from a step that went all the way."""
        self.needed, self.seen, self._guesses = max(self.needed, size), True, ()

    def lacked(self, size: Bytes) -> None:
        """Learn from a step that ran out when it would have held ``size``: it may need more still."""
        self.needed = max(self.needed, size)
        self._guesses = tuple(sorted({2 * self.needed, *self._guesses}, reverse=True))

    def forget(self) -> None:
        """Guess again: no plan fits beside what was seen, and the next step may need less."""
        self.needed, self.seen = 0, False
        self._guesses = tuple(times * self._gradients for times in _GUESSES)
