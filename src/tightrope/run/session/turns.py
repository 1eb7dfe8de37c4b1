"""The turns of a training step so far: forwards and backwards of captured graphs, in order."""

from dataclasses import replace

from tightrope.lower.join import Turn
from tightrope.run.session.patterns import Pattern


class Turns:
    """What the caller did since nothing was pending.

    Attributes:
        num_calls: forwards so far.

    Example:
        >>> turns = Turns()
        >>> turns.forward(3)
        0
        >>> turns.backward(0)
        >>> turns.pattern
        (Turn(call=0, graph=3, back=False), Turn(call=0, graph=3, back=True))
    """

    def __init__(self) -> None:
        self._done: list[Turn] = []
        self.num_calls = 0

    @property
    def pattern(self) -> Pattern:
        """All of them."""
        return tuple(self._done)

    def next(self, graph: int) -> Turn:
        """The turn that a forward of a graph would be."""
        return Turn(self.num_calls, graph, False)

    def forward(self, graph: int) -> int:
        """Note a forward; return the number of its call."""
        self._done.append(self.next(graph))
        self.num_calls += 1
        return self.num_calls - 1

    def backward(self, call: int) -> None:
        """Note that the backward of a call is over."""
        self._done.append(Turn(call, self._done[self._place(call)].graph, True))

    def expect(self, call: int, graph: int) -> None:
        """Let a call stand for another form of its graph from now on."""
        if self._done[self._place(call)].graph != graph:
            self._done = [replace(one, graph=graph) if one.call == call else one for one in self._done]

    def _place(self, call: int) -> int:
        """Where the forward of a call stands."""
        return next(place for place, turn in enumerate(self._done) if turn.call == call)
