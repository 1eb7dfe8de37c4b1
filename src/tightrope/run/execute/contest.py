"""Run two forms of a step in turns, and go on with what is faster.

Idea        A stretch is chosen by its own time, taken on memory that it has just used. In a step, other
            kernels use the caches before it, and what it makes lies elsewhere. How fast a disk is, and what
            its copies take from the ops beside them, changes by the minute. So whole steps decide: a plan
            fused and op by op, or a plan that pages and one that does not, run in blocks that take turns,
            and the fastest step of each is compared. A plan that pages goes on where it takes 1 % less.
Guarantee   Both forms fit the budget, are judged, and are checked in their first run. Of a fused plan and
            the same op by op, the one goes on whose fastest timed step was not slower than the other's. A
            plan that pages goes on only if its fastest timed step took at least 1 % less; else the one
            without pages does, and may then have been the slower one, by up to that 1 %.
Complexity  `STEPS` steps, which train like any other; the first one of every block is not timed.
Gaps        What the caller does between the parts is not counted. Steps that are not run to their end, or
            run otherwise than planned, are not timed, and the contest waits. Where there is no room for the
            other form when a step begins, that step runs in the first form, whichever was faster.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from tightrope.core import Nanoseconds, format_time
from tightrope.run.execute.prepared import Prepared

_BLOCKS, _TIMED = 3, 3
STEPS: Final = 2 * (_BLOCKS * (1 + _TIMED) + 1)
"""Most steps of a contest: two kinds of blocks, and the first run of each form, which is checked."""


class TwoForms(NamedTuple):
    """What the two forms of a step are called.

    Attributes:
        first: what the one is that was planned, as in "12 ms a step fused".
        other: and the other one.
        lost: says in the report, before why, that the other one runs.
        wall: whether waiting counts: steps are compared by the clock on the wall.
        ahead: how much less time than the other the first has to take, as a share, to go on.
    """

    first: str
    other: str
    lost: str
    wall: bool = False
    ahead: float = 0.0


FUSED: Final = TwoForms("fused", "op by op", "not fused")
PAGED: Final = TwoForms("with pages", "without pages", "not paged", wall=True, ahead=0.01)
"""Pages take a second processor and wear the disk: none are written where the two differ by noise alone."""


class Contest:
    """State of one contest.

    Args:
        first: what runs first.
        other: makes the other form ready; called once it is its turn.
        forms: what they are.

    Attributes:
        over: whether it is known which goes on.
    """

    def __init__(self, first: Prepared, other: Callable[[], Prepared], forms: TwoForms = FUSED) -> None:
        self._first, self._make, self._forms = first, other, forms
        self._other: Prepared | None = None
        self._turn = first
        self._seen = 0
        self._block: list[Nanoseconds] = []
        self._times: dict[bool, list[list[Nanoseconds]]] = {False: [], True: []}
        self.over = False

    def next(self, fits: Callable[[Prepared], bool]) -> Prepared:
        """Choose what runs next.

        Args:
            fits: tells whether there is room for it now; the first form is known to fit.
        """
        if not self.over:
            self._note()
        if self._turn is not self._first and not fits(self._turn):
            return self._first
        return self._turn

    def _note(self) -> None:
        times = self._turn.times
        latest = times.latest_wall_ns if self._forms.wall else times.latest_ns
        if times.num_runs == self._seen or latest is None:
            return
        self._seen = times.num_runs
        self._block.append(latest)
        if len(self._block) <= _TIMED:
            return
        self._times[self._turn is self._first].append(self._block[1:])
        self._block = []
        if len(self._times[False]) == _BLOCKS:
            self._decide()
        elif self._turn is self._first:
            if self._other is None:
                self._other = self._make()
                forms = self._forms
                self._other.proof.lost = (
                    f"{forms.lost}: in turns with the plan {forms.first}, until it is known which goes on"
                )
            self._turn = self._other
        else:
            self._turn = self._first
        self._seen = self._turn.times.num_runs

    def _decide(self) -> None:
        assert self._other is not None
        first, other = (min(map(min, self._times[which])) for which in (True, False))
        forms = self._forms
        wins = first <= (1 - forms.ahead) * other
        self._turn, self.over = (self._first if wins else self._other), True
        said = f"{format_time(first)} a step {forms.first}, {format_time(other)} {forms.other}, in turns"
        self._first.proof.contest = said
        if not wins:
            short = "slower" if first > other else f"not {forms.ahead:.0%} faster"
            self._other.proof.lost = f"{forms.lost}: {short}, {said}"
