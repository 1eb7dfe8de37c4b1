"""What kernels take in code that is in no graph, such as that between the graphs of a model.

Idea        Such code has no prices, so the first steps are watched: from the end of one call of the model to
            the end of the next. What kernels took behind torch's allocator is held back from then on; in a
            step in which graphs are captured, from the moment when the next one is.
Guarantee   A step that was watched and took more than the budget with it is refused, after it has run.
Gaps        Nobody looks while something is captured, as capturing takes memory too, and after `_LOOKS`
            steps.
"""

from typing import Final

from tightrope.core import Bytes
from tightrope.core.ledger import Ledger, Row, Since
from tightrope.price.measure import UNSEEN
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.room import CAPTURE_SLACK, HIDDEN, RESERVE

_LOOKS: Final = 4


class HiddenBytes:
    """Watches the first steps of one model; state of the runtime.

    Attributes:
        hidden: most bytes that kernels were seen to take; 0 = at most `UNSEEN`.
    """

    def __init__(self, accounts: Accounts) -> None:
        self.hidden: Bytes = 0
        self._accounts = accounts
        self._open = False
        self._left, self._graphs = _LOOKS, 0

    def look(self, graphs: int, budget: Bytes) -> None:
        """End one step and begin the next.

        Args:
            graphs: number captured so far.
            budget: total bytes asked for.

        Raises:
            InfeasibleError: a step took more than the budget, together with its kernels.
        """
        seen, charged = self.close(), self._accounts.take_peak()
        same, self._graphs = graphs == self._graphs, graphs
        if not self._left:
            self._accounts.watchers.discard(self)
        else:
            self._begin()
        if not same or not seen:
            return
        self._left -= 1
        if seen <= max(UNSEEN, self.hidden):
            return
        self.hidden = seen
        self._accounts.hold_back(self, seen)
        ledger = Ledger(budget).plus(
            Row(HIDDEN, seen, source="outside torch's allocator"),
            Row("runtime reserve", RESERVE + CAPTURE_SLACK, since=Since.LATER),
        )
        if ledger.room() < charged:
            raise ledger.explain(Row("the step", charged))

    def watch(self) -> None:
        """Watch a step in which nothing is captured, among the first ones."""
        self._left -= bool(self._left)
        self._begin()

    def watched(self) -> None:
        """End such a step, and hold back what kernels took in it."""
        self.traced(begins=True)

    def traced(self, begins: bool) -> None:
        """Stop watching where the trace of a graph begins, and go on where it ends."""
        if not begins:
            self._begin()
        elif (seen := self.close()) > max(UNSEEN, self.hidden):
            self.hidden = seen
            self._accounts.hold_back(self, seen)

    def _begin(self) -> None:
        hook = self._accounts.allocator
        if self._left and not self._open and hook is not None and hook.attach_hidden():
            hook.begin_hidden()
            self._open = True
            self._accounts.watchers.add(self)

    def close(self) -> Bytes:
        """End the step that is watched; say what kernels took in it and gave back."""
        hook = self._accounts.allocator
        if not self._open or hook is None:
            return 0
        self._open = False
        found = hook.end_hidden()
        return max(found.peak - max(found.left, 0), 1)
