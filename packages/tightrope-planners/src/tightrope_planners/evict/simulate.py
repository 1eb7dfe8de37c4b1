"""Eviction on a recorded log: what a policy recomputes in an arena of some size; see `LogReplay`."""

from dataclasses import dataclass

from tightrope.core.units import Bytes, Nanoseconds, round_up
from tightrope.run.evict.core import Statistics
from tightrope.run.evict.policies import Policy
from tightrope_planners.evict.arena import Decision
from tightrope_planners.evict.follow import Lookahead
from tightrope_planners.evict.log import EvictionLog, LoggedOp, Released
from tightrope_planners.evict.rehearse import rehearse
from tightrope_planners.evict.replay import LogReplay


@dataclass(frozen=True, slots=True)
class Simulated:
    """What running a log under a policy took.

    Attributes:
        operator_ns: of the ops, each run once.
        again_ns: of what ran again, per step.
        again_ops: how many ops ran again.
        statistics: of the arena.
        decisions: of the arena, where they were asked for.
    """

    operator_ns: Nanoseconds
    again_ns: tuple[Nanoseconds, ...]
    again_ops: int
    statistics: Statistics
    decisions: tuple[Decision, ...] = ()

    @property
    def overhead(self) -> float:
        """Recomputed time over the time of the ops."""
        return sum(self.again_ns) / self.operator_ns if self.operator_ns else 0.0


def live_peak(log: EvictionLog) -> Bytes:
    """Compute the largest sum of bytes that are live at once without eviction: what 100 % stands for."""
    live = peak = 0
    for event in log.events:
        match event:
            case LoggedOp():
                live += sum(round_up(max(1, log.sizes[one])) for one in event.creates)
                peak = max(peak, live + (round_up(event.temporary) if event.temporary else 0))
            case Released(storage) if not log.outside[storage]:
                live -= round_up(max(1, log.sizes[storage]))
    return peak


def simulate(
    log: EvictionLog,
    size: Bytes,
    policy: Policy,
    *,
    decisions: bool = False,
    fixed: Lookahead | None = None,
    informed: bool = True,
) -> Simulated:
    """Run a log in an arena.

    Args:
        log: what runs.
        size: bytes of the arena.
        policy: who is evicted.
        decisions: whether to keep them.
        fixed: what every step follows.
        informed: whether the time and bytes of an op are known before its first run on such sizes; a block
            does not know them.

    Raises:
        InfeasibleError: something fits nowhere although everything that may go was evicted, or what runs
            again takes `MOST_AGAIN` times the time of the log.
    """
    run = LogReplay(
        log, size, policy, decisions=decisions, fixed=fixed, choose=lambda record: rehearse(record, size)
    )
    run.informed = informed
    run.play()
    kept = run.arena.decisions() if decisions else ()
    return Simulated(log.operator_ns, tuple(run.steps), run.again_ops, run.arena.statistics(), kept)
