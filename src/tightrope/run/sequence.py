"""One budget for a model that becomes several graphs.

Idea        All graphs of a call hold their arenas at once, between the first forward and the last
            backward. How many there are is known only when they have run. So each starts with its
            smallest plan; a second step with the same graphs shows what the whole step takes; what is
            left of the budget then goes to the graphs in proportion to what each lacks of the plan
            that recomputes nothing.
Source      water-filling by need; the sum of the shares grows by at most the room that was observed
Guarantee   The allocator's limit holds throughout. Shares shrink whenever more is held.
Complexity  one smallest plan per graph, and one more search when the shares are known
Gaps        Code between graphs runs eagerly: its allocations are counted and limited, not planned.
            A share follows need in bytes, not the time that a byte would save.
"""

from collections.abc import Sequence
from typing import Protocol

from tightrope.core import Bytes


class Sharing(Protocol):
    """A graph's runner, seen as one of several under one budget.

    Attributes:
        share: bytes that its arena, and what lives outside of it, may take.
        least: the same of its smallest plan.
        most: the same of the plan that recomputes nothing.
        num_forwards: steps so far.
    """

    share: Bytes | None

    @property
    def least(self) -> Bytes:
        """Bytes of the smallest plan."""

    @property
    def most(self) -> Bytes:
        """Bytes of the plan that recomputes nothing."""

    @property
    def num_forwards(self) -> int:
        """Forwards that ran."""


class Shares:
    """Divides what the graphs of a call leave of the budget.

    Attributes:
        budget: total bytes, less what is held back.
    """

    def __init__(self, budget: Bytes) -> None:
        self.budget = budget
        self._counts: dict[int, int] = {}
        self._held: Bytes = 0
        self._taken: dict[frozenset[int], Bytes] = {}

    def begin(self, runners: Sequence[Sharing], *, held: Bytes, peak: Bytes) -> None:
        """Set the shares for the call that begins.

        Args:
            runners: all graphs of the model, in order of capture.
            held: bytes held now.
            peak: most bytes held since the call before this one began; 0 = nobody looked.
        """
        before, self._counts = self._counts, {index: r.num_forwards for index, r in enumerate(runners)}
        ran = frozenset(index for index, count in self._counts.items() if count > before.get(index, 0))
        known = ran and all(before.get(index, 0) for index in ran)
        if known and ran not in self._taken and all(runners[i].share == runners[i].least for i in ran):
            least = sum(runners[index].least for index in ran)
            self._taken[ran] = max(peak - self._held, least) if peak else least
        self._held = held
        for graphs, taken in self._taken.items():
            divide([runners[index] for index in graphs], self.budget - held - taken)


def divide(runners: Sequence[Sharing], room: Bytes) -> None:
    """Give ``room`` bytes more than the smallest plans take, in proportion to need.

    A share above the smallest plan never grows, so a runner that belongs to several sets of graphs
    keeps the smallest that it was given.

    Example:
        >>> from types import SimpleNamespace
        >>> one, two = (SimpleNamespace(share=10, least=10, most=most) for most in (40, 20))
        >>> divide([one, two], 20); (one.share, two.share)
        (25, 15)
    """
    needs = [max(runner.most - runner.least, 0) for runner in runners]
    total = sum(needs)
    for runner, need in zip(runners, needs, strict=True):
        extra = max(min(room, total), 0) * need // total if total else 0
        given = runner.least + extra
        before = runner.share
        runner.share = given if before in (None, runner.least) else min(given, before)
