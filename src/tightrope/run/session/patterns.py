"""Which turns follow each other in the training steps of a model.

A *pattern* is what happens between two moments at which nothing is pending: forwards and backwards of
captured graphs, in order. What followed the pattern before, and began with the same graph, is expected
to follow again.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

from tightrope.lower.join import Turn

Pattern: TypeAlias = tuple[Turn, ...]


def single(graph: int) -> Pattern:
    """The pattern of one call: its forward, then its backward.

    >>> [turn.back for turn in single(0)]
    [False, True]
    """
    return Turn(0, graph, False), Turn(0, graph, True)


def ended(done: Pattern, call: int) -> Turn:
    """The backward of a call among the turns of a step so far.

    >>> ended((Turn(0, 3, False),), 0)
    Turn(call=0, graph=3, back=True)
    """
    return Turn(call, next(one.graph for one in done if one.call == call), True)


def standing_for(done: Pattern, call: int, graph: int) -> Pattern:
    """Let a call among the turns of a step so far stand for another form of its graph."""
    if all(one.graph == graph for one in done if one.call == call):
        return done
    return tuple(replace(one, graph=graph) if one.call == call else one for one in done)


class Patterns:
    """Patterns that were completed, and what followed what.

    Attributes:
        together: plan a pattern as one even where that gains nothing, as a recording needs it.
        last: what was completed last: the same object for as long as nothing else is.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[Pattern, int], Pattern] = {}
        self.together = False
        self.last: Pattern = ()
        self._apart: set[Pattern] = set()
        self._free: set[Pattern] = set()
        self._dropped: dict[Pattern, tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]] = {}

    def expected(self, graph: int) -> Pattern:
        """The pattern that a forward of a graph is expected to begin, if planning it as one can help.

        >>> known = Patterns()
        >>> twice = (Turn(0, 0, False), Turn(1, 0, False), Turn(1, 0, True), Turn(0, 0, True))
        >>> known.learn(twice)
        >>> known.expected(0) == twice, known.expected(1) == single(1)
        (True, True)
        """
        found = self._after.get((self.last, graph))
        if found is None:
            # whatever followed something else, latest first: before anything better is known
            found = next((p for (_, first), p in reversed(self._after.items()) if first == graph), None)
        return single(graph) if found is None or self.why_apart(found) else found

    def why_apart(self, pattern: Pattern | None = None) -> str:
        """Say why the calls of a pattern, by default the last, are not planned as one; empty = they are."""
        pattern = self.last if pattern is None else pattern
        if pattern in self._apart:
            return "no plan of all of them together fitted"
        gains_nothing = pattern in self._free and not self.together
        return "nothing is computed again, so one plan gains nothing" if gains_nothing else ""

    def note_dropped(self, pattern: Pattern, gradients: Collection[tuple[int, int]]) -> None:
        """Note gradients (call, output) that the caller let go of before the next turn of a pattern."""
        now = frozenset(gradients)
        self._dropped[pattern] = self._dropped.get(pattern, (now, now))[1], now

    def dropped(self, pattern: Pattern) -> frozenset[tuple[int, int]]:
        """The gradients of a pattern that need no room when they were handed over: dropped twice in a row.

        Where every second step leaves sums to the next one, its gradients stay only then.

        >>> known = Patterns()
        >>> for dropped in ([(0, 0), (0, 1)], [(0, 1)]):
        ...     known.note_dropped(single(0), dropped)
        >>> known.dropped(single(0))
        frozenset({(0, 1)})
        """
        before, last = self._dropped.get(pattern, (frozenset(), frozenset()))
        return before & last

    def never_fits(self, pattern: Pattern) -> None:
        """Note that no plan of all calls of a pattern fits."""
        self._apart.add(pattern)

    def learn(self, pattern: Pattern, *, free: bool = False) -> None:
        """Note a pattern that was completed; ``free`` = call by call, and nothing was computed again."""
        (self._free.add if free else self._free.discard)(pattern)
        key = (self.last, pattern[0].graph)
        self._after.pop(key, None)
        self._after[key] = pattern
        self.last = self.last if self.last == pattern else pattern
