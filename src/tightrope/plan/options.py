"""What a caller asks of a planner besides bytes: effort, seed, progress, switches."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tightrope.core import Bytes, Graph, Limits, Machine, Nanoseconds, OpId, Schedule
from tightrope.plan.model import Pair

_TELL_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands.

    Attributes:
        seconds: since the search began.
        best_ns: time of the best fitting plan, None before the first.
        best_total: its total bytes, None before the first.
        budget: total bytes asked for.
        message: what is being done, for people.
    """

    seconds: float
    best_ns: Nanoseconds | None
    best_total: Bytes | None
    budget: Bytes
    message: str


class Watch:
    """The clock of one search: its deadline, its listener, and whether the user interrupted it."""

    def __init__(
        self,
        *,
        seconds: float | None = None,
        budget: Bytes = 0,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.begun = time.perf_counter()
        self.seconds, self.budget, self.progress = seconds, budget, progress
        self.best_ns: Nanoseconds | None = None
        self.best_total: Bytes | None = None
        self.interrupted = False
        self._told = -_TELL_EVERY

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.begun

    @property
    def over(self) -> bool:
        """Whether the search must end: the time is up, or the user interrupted it."""
        return self.interrupted or (self.seconds is not None and self.elapsed >= self.seconds)

    def tell(self, message: str, *, last: bool = False) -> None:
        """Report progress, at most ten times a second, and the last time in any case."""
        if self.progress is None or (not last and self.elapsed - self._told < _TELL_EVERY):
            return
        self._told = self.elapsed
        self.progress(Progress(self._told, self.best_ns, self.best_total, self.budget, message))


ENOUGH: Final = 0.005
"""What a plan for a loop may recompute for, as a share of all ops' time: to find less costs seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Knobs of a planner.

    Attributes:
        seed: of the random choices.
        effort: factor on the number of annealing moves.
        restarts: annealing runs, each with another heat and seed.
        start: pairs to begin from, empty = find some.
        order: of first runs: ``given`` = the base order, ``free`` = any that gives the same values.
        bound: whether to prove a bound on the time; ``quick`` = with one linear program, no search.
        layers: solve repeated layers once and copy what was found.
        fresh: anneal from nothing too, not only improve the start.
        enough_ns: a plan that recomputes for no longer ends the search.
        watch: clock and listener.
    """

    seed: int = 0
    effort: float = 1.0
    restarts: int = 4
    start: Sequence[Pair] = ()
    order: Literal["given", "free"] = "given"
    bound: bool | Literal["quick"] = "quick"
    layers: bool = True
    fresh: bool = True
    enough_ns: Nanoseconds = 0
    watch: Watch = field(default_factory=Watch)


Ordering: TypeAlias = tuple[OpId, ...]
"""Op of a graph at each position of a reordered one."""

Planner: TypeAlias = Callable[[Graph, Machine | None, Limits, Options], Schedule]
"""A planner returns the best schedule it has; whether it fits the limits is for the caller to check."""
