"""How long steps really take, beside what the prices of their ops promise.

Idea        Ops are measured one by one, on made-up inputs, at some earlier time; steps run in another state
            of the machine. The *pace* of a graph is observed over forecast time of the plan of it that ran
            last, from its recent steps; with it the forecast of any plan of the graph is an expected time.
Guarantee   One factor for all ops of a graph changes no comparison: the fastest plan stays the fastest, a
            bound stays a bound, and time that never rises with the budget still does not. Prices, graphs
            and plans are not touched, so what runs, and the keys of kept plans, stay what they are.
Complexity  Two reads of two clocks per part of the first 64 steps, and of every 16th behind them: to read the
            clock of a thread may take longer than a small step. A median of a few numbers when asked for.
Gaps        The pace is the machine's as much as the graph's: what else runs on it changes it by a third
            within minutes. So it dies with the process. Kernels whose price is further off than others' are
            not told apart: the time of a part is known, that of its ops is not.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from statistics import median_low
from typing import Final

from tightrope.core import Forecast, Nanoseconds, format_time

_RECENT: Final = 9
"""Steps of which the median is taken."""
_ALL_OF_FIRST, _EVERY = 64, 16
"""Steps that are timed: so many first ones, then one in so many."""
_MOST: Final = 256
"""Graphs whose pace is known."""


class Paced:
    """Times of the recent whole runs of one plan, without those that are checked.

    Args:
        fingerprint: of the graph.
        forecast: of the plan.
        plain: see there.

    Attributes:
        plain: whether it runs as it always does; a recording takes longer, and no other plan goes by it.
        num_runs: whole runs that were timed.
        timed: whether to time the run that begins, and those after it.

    Example:
        >>> times = Paced("0" * 64, Forecast(0, 0, 0, ns=100, base_ns=100))
        >>> times.ran(125, 130)
        >>> times.found(clock="thread CPU time").ratio
        1.25
    """

    def __init__(self, fingerprint: str, forecast: Forecast, *, plain: bool = True) -> None:
        self.forecast, self.plain = forecast, plain
        self._key = fingerprint, forecast.base_ns
        self._recent: deque[tuple[Nanoseconds, Nanoseconds]] = deque(maxlen=_RECENT)
        self.num_runs = 0
        self.timed: Iterator[bool] = chain(
            repeat(True, _ALL_OF_FIRST), cycle([False] * (_EVERY - 1) + [True])
        )

    def ran(self, ns: Nanoseconds, wall_ns: Nanoseconds) -> None:
        """Note a whole run: what its parts took by the clock of the prices, and by the wall's."""
        self._recent.append((ns, wall_ns))
        self.num_runs += 1
        if not self.plain:
            return
        _LATEST.pop(self._key, None)
        _LATEST[self._key] = self
        if len(_LATEST) > _MOST:
            del _LATEST[next(iter(_LATEST))]

    @property
    def ns(self) -> Nanoseconds | None:
        """Median of the recent runs; None before the first."""
        return median_low(ns for ns, _ in self._recent) if self._recent else None

    @property
    def wall_ns(self) -> Nanoseconds | None:
        """Median of the recent runs by the clock on the wall; None before the first."""
        return median_low(wall for _, wall in self._recent) if self._recent else None

    @property
    def latest_ns(self) -> Nanoseconds | None:
        """Of the latest run; None before the first."""
        return self._recent[-1][0] if self._recent else None

    @property
    def latest_wall_ns(self) -> Nanoseconds | None:
        """Of the latest run, by the clock on the wall; None before the first."""
        return self._recent[-1][1] if self._recent else None

    def found(self, *, clock: str) -> "StepTime":
        """Collect what is known of the time of this plan's steps."""
        latest = _LATEST.get(self._key)
        seen = None
        if (
            latest is not None
        ):  # by the same clock: what pages is timed by the wall's, what does not may not be
            seen = latest.wall_ns if clock == "wall time" else latest.ns
        expected = None
        if latest is not None and seen is not None and latest.forecast.ns:
            expected = round(self.forecast.ns * seen / latest.forecast.ns)
        found = self.forecast.ns or None, expected, self.ns, self.wall_ns
        return StepTime(*found, clock, len(self._recent))


_LATEST: Final[dict[tuple[str, Nanoseconds], Paced]] = {}
"""By graph and its prices, the plan that ran last."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of one training step, without what the caller does between its parts; None where not known.

    Attributes:
        forecast_ns: as planned: the sum of what its ops took when each was measured alone.
        expected_ns: the same at the pace of the graph's recent steps, whichever plan they ran.
        observed_ns: median of the recent steps of this plan by ``clock``; the checked first one is left out.
        wall_ns: the same by the clock on the wall.
        clock: of the prices and of ``observed_ns``.
        num_steps: that were observed, at most 9.
    """

    forecast_ns: Nanoseconds | None = None
    expected_ns: Nanoseconds | None = None
    observed_ns: Nanoseconds | None = None
    wall_ns: Nanoseconds | None = None
    clock: str = ""
    num_steps: int = 0

    @property
    def ratio(self) -> float | None:
        """Observed over forecast time."""
        if self.observed_ns is None or not self.forecast_ns:
            return None
        return self.observed_ns / self.forecast_ns

    def __str__(self) -> str:
        said = "unknown" if self.forecast_ns is None else format_time(self.forecast_ns)
        text = f"time of the step: forecast {said}"
        if self.observed_ns is None or self.wall_ns is None:
            if self.expected_ns is not None:
                text += f", {format_time(self.expected_ns)} at the pace of this graph's recent steps"
            return f"{text}; observed: unknown before a step after the first"
        text += f", observed {format_time(self.observed_ns)}"
        if self.ratio is not None:
            text += f", {self.ratio:.2f} times the forecast"
        steps = f"median of {self.num_steps} steps" if self.num_steps > 1 else "one step"
        return f"{text} ({self.clock}, {steps}; on the wall {format_time(self.wall_ns)})"


def summed(times: Iterable[StepTime]) -> StepTime:
    """Add up the times of what runs in one step; what is not known of one is not known of the sum.

    Example:
        >>> summed([StepTime(5, None, 6, 7, "wall time", 2), StepTime(1, 2, 3, 4, "wall time", 9)])
        StepTime(forecast_ns=6, expected_ns=None, observed_ns=9, wall_ns=11, clock='wall time', num_steps=2)
    """
    every = list(times)

    def total(values: list[Nanoseconds | None]) -> Nanoseconds | None:
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    return StepTime(
        total([one.forecast_ns for one in every]),
        total([one.expected_ns for one in every]),
        total([one.observed_ns for one in every]),
        total([one.wall_ns for one in every]),
        every[0].clock if every else "",
        min((one.num_steps for one in every), default=0),
    )
