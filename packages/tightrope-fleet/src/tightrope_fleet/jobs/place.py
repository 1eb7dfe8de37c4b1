"""Place all jobs of a trace, by one rule or by those that watch how rules and predictions do.

Idea        `HedgedPlacer` follows the rule that would have taken the least machine time so far, on shadow
            machines; `TrustingPlacer` (`trust.py`) the one that predictions deserve so far.
Guarantee   As `JobPlacer`: a decision depends on what came before it, and no machine holds more than it has.
Complexity  As many times that of `JobPlacer` as there are shadows, and once more.
Gaps        Jobs are never moved once they run.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tightrope.core import TightropeError
from tightrope_fleet.jobs.bound import machine_time_bound
from tightrope_fleet.jobs.placer import JobPlacer
from tightrope_fleet.jobs.policies import HEDGED, PREDICTING, WATCHING
from tightrope_fleet.jobs.predict import LifePredictor
from tightrope_fleet.jobs.trust import TrustingPlacer
from tightrope_fleet.values.jobs import JobPlan, check_items
from tightrope_fleet.values.work import WorkItem

_REVIEW = 32
_FIRST = 1500
"""Jobs before the first review: a lead is noise before that."""
LEAD = 0.03
"""Share of machine time by which a rule has to be ahead.

A change leaves machines that two rules have filled, which cost up to 2 % on made-up jobs.
"""


class _Placer(Protocol):
    @property
    def num_used(self) -> int: ...

    def place(self, position: int, item: WorkItem) -> int: ...


class HedgedPlacer:
    """Follow the rule that would have taken the least machine time so far.

    Every rule places all jobs on shadow machines of its own. The real placement follows best-fit until
    another rule is ahead by more than `LEAD` on these, and then that one: a predictor that does not help
    costs little.

    Args:
        capacity: of every machine, per resource.
        predictor: of ends.
        again: predict machines that have outlived their end once more.
        most_hosts: machines that there are; 0 = as many as it takes.
        rules: that are tried, the first one to begin with.
    """

    def __init__(
        self,
        capacity: Sequence[int],
        *,
        predictor: LifePredictor,
        again: bool = True,
        most_hosts: int = 0,
        rules: Sequence[str] = ("best-fit", "expected"),
    ) -> None:
        def placer(rule: str) -> JobPlacer:
            return JobPlacer(capacity, rule=rule, predictor=predictor, again=again, most_hosts=most_hosts)

        self._shadows = {rule: placer(rule) for rule in rules}
        self._real = placer(next((rule for rule in rules if rule in PREDICTING), rules[0]))
        self._taken = dict.fromkeys(rules, 0)
        self._leader, self._last, self._count = rules[0], 0, 0

    @property
    def num_used(self) -> int:
        """Machines that hold a job."""
        return self._real.num_used

    def place(self, position: int, item: WorkItem) -> int:
        """Choose a machine for a job that starts now; -1 where there is none."""
        for rule, shadow in self._shadows.items():
            if self._count:
                self._taken[rule] += shadow.num_used * (item.start - self._last)
            shadow.place(position, item)
        self._last = item.start
        self._count += 1
        if self._count >= _FIRST and self._count % _REVIEW == 0:
            best = min(self._taken, key=lambda rule: self._taken[rule])
            if self._taken[best] < (1 - LEAD) * self._taken[self._leader]:
                self._leader = best
        self._real.follow(self._leader)
        return self._real.place(position, item)


def place_jobs(
    items: Sequence[WorkItem],
    capacity: Sequence[int],
    *,
    rule: str = "aligned",
    predictor: LifePredictor | None = None,
    again: bool = True,
    most_hosts: int = 0,
    until: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> JobPlan:
    """Place jobs one after the other, as they come.

    Args:
        items: by start.
        capacity: of every machine, per resource.
        rule: a name in `RULES`, ``hedged`` (see `HedgedPlacer`) or ``trusting`` (see `TrustingPlacer`).
        predictor: of ends; the true ends are used for leaving alone.
        again: predict once more where a machine has outlived its end.
        most_hosts: machines that there are; 0 = as many as it takes.
        until: count machine time before this only.
        seed: of the predictor's errors, written into the plan.
        progress: told the share of jobs placed now and then.

    Returns:
        The machine of every job, machine time, and what no placement undercuts.

    Raises:
        TightropeError: a job is malformed or larger than a machine, or the rule needs a predictor.

    Example:
        >>> jobs = [WorkItem("a", (3,), 0, 10), WorkItem("b", (3,), 5, 10), WorkItem("c", (1,), 6, 8)]
        >>> place_jobs(jobs, (4,), rule="best-fit").hosts
        (0, 1, 0)
    """
    jobs, size = tuple(items), tuple(capacity)
    check_items(jobs, size)
    placer: _Placer
    if rule in WATCHING:
        if predictor is None:
            raise TightropeError(
                f"rule {rule!r} looks at predicted ends: give a predictor, or take best-fit."
            )
        kind = HedgedPlacer if rule == HEDGED else TrustingPlacer
        placer = kind(size, predictor=predictor, again=again, most_hosts=most_hosts)
    else:
        placer = JobPlacer(size, rule=rule, predictor=predictor, again=again, most_hosts=most_hosts)
    hosts: list[int] = []
    peak = 0
    for position, item in enumerate(jobs):
        hosts.append(placer.place(position, item))
        peak = max(peak, placer.num_used)
        if progress is not None and position % 4096 == 0:
            progress(position / len(jobs))
    placed = [item for item, host in zip(jobs, hosts, strict=True) if host >= 0]
    return JobPlan(
        capacity=size,
        hosts=tuple(hosts),
        until=until,
        machine_time=machine_time(jobs, hosts, until),
        lower_bound=machine_time_bound(placed, size, until),
        peak=peak,
        most_hosts=most_hosts,
        policy=rule,
        seed=seed,
    )


def machine_time(items: Sequence[WorkItem], hosts: Sequence[int], until: int | None = None) -> int:
    """Add up the time in which machines hold at least one job; items by start."""
    total = 0
    busy: dict[int, tuple[int, int]] = {}
    for item, host in zip(items, hosts, strict=True):
        end = item.end if until is None else min(item.end, until)
        if host < 0 or item.start >= end:
            continue
        start, last = busy.get(host, (item.start, item.start))
        if item.start > last:
            total += last - start
            start, last = item.start, item.start
        busy[host] = (start, max(last, end))
    return total + sum(last - start for start, last in busy.values())
