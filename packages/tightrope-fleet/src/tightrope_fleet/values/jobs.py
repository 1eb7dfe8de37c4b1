"""Jobs on machines: what a placement is, offline or as jobs come.

machine ^  +---C---+
      1 |  |       |   +-D-+        item = (size vector, start, end), half-open, as in place/
      0 | +-A-+-B----------+        a machine counts while anything runs on it
        +-------------------> time
"""

import msgspec

from tightrope.core.errors import TightropeError
from tightrope.core.units import shown
from tightrope_fleet.values.work import WorkItem

MOST_JOBS = 2_000_000
_LARGEST = 2**60


class JobPlan(msgspec.Struct, frozen=True):
    """Where every job ran.

    Attributes:
        capacity: of every machine, per resource.
        hosts: per item, its machine; -1 = refused, because no machine had room and no other could be had.
        until: machine time is counted before this; None = to the end of the last job.
        machine_time: time units in which machines held at least one job, summed over machines.
        lower_bound: no placement of the same jobs has less (see `tightrope_fleet.judge.jobs`).
        peak: most machines in use at once.
        most_hosts: machines that there are; 0 = as many as it takes.
        policy: what chose.
        seed: of everything random.
    """

    capacity: tuple[int, ...]
    hosts: tuple[int, ...]
    until: int | None
    machine_time: int
    lower_bound: int
    peak: int
    most_hosts: int = 0
    policy: str = "best-fit"
    seed: int = 0

    @property
    def num_refused(self) -> int:
        """Jobs that found no machine."""
        return sum(host < 0 for host in self.hosts)

    @property
    def ratio(self) -> float:
        """Machine time relative to the bound."""
        return self.machine_time / self.lower_bound if self.lower_bound else 1.0


def check_items(items: tuple[WorkItem, ...], capacity: tuple[int, ...]) -> None:
    """Refuse jobs and machines that cannot be.

    Raises:
        TightropeError: names the job, and quotes the value.
    """
    if not 1 <= len(capacity) <= 16 or any(not 0 < size <= _LARGEST for size in capacity):
        raise TightropeError(
            f"capacity={shown(capacity)}: give 1 to 16 sizes above 0, one per resource of a machine."
        )
    if len(items) > MOST_JOBS:
        raise TightropeError(f"{len(items):,} jobs: at most {MOST_JOBS:,} are placed at once.")
    last = -_LARGEST
    for position, item in enumerate(items):
        where = f"job {item.name!r:.60} (number {position})"
        if not -_LARGEST <= item.start < item.end <= _LARGEST:
            raise TightropeError(f"{where}: lives [{item.start}, {item.end}): it must begin before it ends.")
        if item.start < last:
            raise TightropeError(f"{where}: begins at {item.start}, before the job above it: sort by start.")
        last = item.start
        if len(item.size) != len(capacity) or any(size < 0 for size in item.size):
            raise TightropeError(
                f"{where}: size {shown(item.size)}: give {len(capacity)} sizes, none below 0."
            )
        if any(size > most for size, most in zip(item.size, capacity, strict=True)):
            raise TightropeError(
                f"{where}: size {shown(item.size)} is more than a machine has, {shown(capacity)}: leave it "
                "out, or "
                "take larger machines."
            )
