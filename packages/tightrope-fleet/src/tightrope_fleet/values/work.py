"""Work over time: what streams, jobs and fleets have in common.

A *work item* takes a vector of resources for a while; a *host* (a processor, a machine, a phone, an arena)
offers a vector of resources in its windows. A plan promises a figure per limit; a run, real or simulated,
leaves a `tightrope_shared.draw.WorkTrace`, and a promise is held against what was observed there. Times are
integers, half-open ``[start, end)``, in the unit that the trace names.

Every line of work has its own planner and its own plan. These values are what goes between them, the judges,
the drawings and the command line.
"""

from collections.abc import Sequence

import msgspec


class Availability(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A half-open stretch of time in which a host can be used.

    Attributes:
        start: first instant.
        end: first instant after it.
    """

    start: int
    end: int


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What work runs on or in.

    Attributes:
        name: unique among the hosts of a machine.
        capacity: of each resource, in whole units; every host of a machine has the same resources.
        windows: when it is there, in order and apart; empty = always.
    """

    name: str
    capacity: tuple[int, ...]
    windows: tuple[Availability, ...] = ()


class WorkItem(msgspec.Struct, frozen=True, gc=False):
    """What takes resources for a while: the item of packing, as in ``place/`` with more than one resource.

    Attributes:
        name: for people.
        size: of each resource, in whole units.
        start: when it begins.
        end: when it ends, exclusive.
    """

    name: str
    size: tuple[int, ...]
    start: int
    end: int


class Promise(msgspec.Struct, frozen=True):
    """One limit, what the plan forecasts, and what was observed.

    Attributes:
        limit: what is limited, such as ``arena bytes`` or ``mean score``.
        unit: of all three figures.
        asked: the limit; None = nothing was asked.
        forecast: what the plan says; None = the plan does not say.
        observed: what a run, real or simulated, showed; None = it has not run.
        at_least: whether the figure has to reach the limit instead of staying within it.
        hard: whether breaking it fails the plan; a soft one enters the objective only.
    """

    limit: str
    unit: str
    asked: float | None = None
    forecast: float | None = None
    observed: float | None = None
    at_least: bool = False
    hard: bool = True

    @property
    def holds(self) -> bool:
        """Whether every figure that is known is on the right side of the limit.

        >>> Promise("arena bytes", "B", 100, 90, 101).holds
        False
        """
        known = [figure for figure in (self.forecast, self.observed) if figure is not None]
        if self.asked is None:
            return True
        return all(figure >= self.asked if self.at_least else figure <= self.asked for figure in known)


def broken(promises: Sequence[Promise]) -> tuple[Promise, ...]:
    """List the hard promises that do not hold.

    >>> [one.limit for one in broken([Promise("bytes", "B", 1, 2), Promise("time", "s", 1, 2, hard=False)])]
    ['bytes']
    """
    return tuple(promise for promise in promises if promise.hard and not promise.holds)


def promise_table(promises: Sequence[Promise]) -> list[tuple[str, str, str, str, str]]:
    """Write promises as rows: limit, asked, forecast, observed, and whether it holds.

    >>> promise_table([Promise("bytes", "B", 1, 2)])
    [('bytes (B)', '<= 1', '2', '-', 'broken')]
    """
    return [
        (
            f"{one.limit} ({one.unit})" if one.unit else one.limit,
            "-" if one.asked is None else f"{'>=' if one.at_least else '<='} {one.asked:g}",
            _figure(one.forecast),
            _figure(one.observed),
            "-" if one.asked is None else "holds" if one.holds else "broken" if one.hard else "missed",
        )
        for one in promises
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
