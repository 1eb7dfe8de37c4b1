"""Run a plan fused and op by op in turns, and go on with what is faster.

Idea        A stretch is chosen by its own time, taken on memory that it has just used. In a step, other
            kernels use the caches before it, and what it makes lies elsewhere. So whole steps decide: both
            forms of the plan run in blocks that take turns, and the fastest step of each is compared.
Guarantee   Both forms fit the budget, are judged, and are checked in their first run. What runs in the
            end was not slower in the steps that were timed.
Complexity  `STEPS` steps, which train like any other; the first one of every block is not timed.
Gaps        What the caller does between the parts is not counted. Steps that are not run to their end, or
            run otherwise than planned, are not timed, and the contest waits.
"""

from collections.abc import Callable
from typing import Final

from tightrope.core import Nanoseconds, format_time
from tightrope.run.prepared import Prepared

_BLOCKS, _TIMED = 3, 3
STEPS: Final = 2 * (_BLOCKS * (1 + _TIMED) + 1)
"""Most steps of a contest: two kinds of blocks, and the first run of each form, which is checked."""


class Contest:
    """State of one contest.

    Args:
        fused: what runs first.
        plain: makes the same plan ready op by op; called once it is its turn.

    Attributes:
        over: whether it is known which is faster.
    """

    def __init__(self, fused: Prepared, plain: Callable[[], Prepared]) -> None:
        self._fused, self._make = fused, plain
        self._plain: Prepared | None = None
        self._turn = fused
        self._seen = 0
        self._block: list[Nanoseconds] = []
        self._times: dict[bool, list[list[Nanoseconds]]] = {False: [], True: []}
        self.over = False

    def next(self, fits: Callable[[Prepared], bool]) -> Prepared:
        """Choose what runs next.

        Args:
            fits: tells whether there is room for it now; the fused form is known to fit.
        """
        if not self.over:
            self._note()
        if self._turn is not self._fused and not fits(self._turn):
            return self._fused
        return self._turn

    def _note(self) -> None:
        times = self._turn.times
        if times.num_runs == self._seen or times.latest_ns is None:
            return
        self._seen = times.num_runs
        self._block.append(times.latest_ns)
        if len(self._block) <= _TIMED:
            return
        self._times[self._turn is self._fused].append(self._block[1:])
        self._block = []
        if len(self._times[False]) == _BLOCKS:
            self._decide()
        elif self._turn is self._fused:
            if self._plain is None:
                self._plain = self._make()
                self._plain.proof.unfused = "in turns with the fused plan, until it is known which is faster"
            self._turn = self._plain
        else:
            self._turn = self._fused
        self._seen = self._turn.times.num_runs

    def _decide(self) -> None:
        assert self._plain is not None
        fused, plain = (min(map(min, self._times[which])) for which in (True, False))
        self._turn, self.over = (self._plain if plain < fused else self._fused), True
        said = f"{format_time(fused)} a step fused, {format_time(plain)} op by op, in turns"
        self._fused.proof.contest = said
        self._plain.proof.unfused = f"slower, {said}"
