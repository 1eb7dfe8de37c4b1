"""Policies on logs: what each recomputes at which memory ratio, and what follows from that."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from tightrope.core import InfeasibleError
from tightrope.formats.eviction_log import EvictionLog
from tightrope.run.evict.core import EvictionArena
from tightrope.run.evict.policies import COOP, COOP_AS_PUBLISHED, DTE, DTR, LRU, PLANNED, SIZE, Policy
from tightrope.run.evict.simulate import live_peak, simulate

RATIOS: Final = (90, 80, 70, 60, 50, 40, 30, 20, 10)
FINE: Final = tuple(range(95, 5, -5))
POLICIES: Final = (COOP, DTR, DTE, LRU, SIZE, PLANNED)
ABLATIONS: Final = (
    replace(COOP, name="without moves", relocate=False),
    replace(COOP, name="without two ends", two_ends=False),
    replace(COOP, name="without in-place", in_place=False),
    replace(COOP, name="without soft pins", soft_pins=False),
    COOP_AS_PUBLISHED,
    replace(COOP_AS_PUBLISHED, name="published, one end", two_ends=False),
    replace(COOP_AS_PUBLISHED, name="published, no in-place", in_place=False),
    replace(DTR, name="published, no window", two_ends=True),
    replace(DTR, name="dtr, own cost only", neighbours=False),
    replace(DTR, name="dtr, sampling", sample=True),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A log under a policy at a memory ratio.

    Attributes:
        log: its name.
        policy: its name.
        ratio: percent of the live peak.
        finished: whether it ran; the rest is 0 otherwise.
        again_s: recomputed operator seconds.
        moved_s: seconds of moves, at the policy's copy rate.
        last_again_s: recomputed seconds of the steps after the first.
        overhead: recomputed and moved over operator seconds.
        fragmentation: mean free share of the arena when something had to be evicted.
        search_us: per eviction.
        evictions: storages.
        moves: storages.
    """

    log: str
    policy: str
    ratio: int
    finished: bool
    again_s: float = 0.0
    moved_s: float = 0.0
    last_again_s: float = 0.0
    overhead: float = 0.0
    fragmentation: float = 0.0
    search_us: float = 0.0
    evictions: int = 0
    moves: int = 0

    @property
    def total_s(self) -> float:
        """Recomputed and moved seconds."""
        return self.again_s + self.moved_s


def measure(log: EvictionLog, policy: Policy, ratio: int) -> Point:
    """Simulate one point."""
    try:
        found = simulate(log, live_peak(log) * ratio // 100, policy)
    except InfeasibleError:
        return Point(log.name, policy.name, ratio, False)
    counted = found.statistics
    again = sum(found.again_ns) / 1e9
    moved = counted.moved_bytes / policy.copy_rate / 1e6
    return Point(
        *(log.name, policy.name, ratio, True, again, moved, sum(found.again_ns[1:]) / 1e9),
        (again + moved) * 1e9 / max(1, found.operator_ns),
        counted.fragmentation,
        counted.search_ns / 1e3 / counted.evictions if counted.evictions else 0.0,
        counted.evictions,
        counted.moves,
    )


def lowest(points: Sequence[Point], log: str, policy: str) -> int | None:
    """Find the lowest ratio at which a policy finished."""
    return min((p.ratio for p in points if (p.log, p.policy) == (log, policy) and p.finished), default=None)


def against_peers(points: Sequence[Point], *, moves: bool) -> dict[str, Any]:
    """Compare coop with DTR and DTE wherever both finish.

    Args:
        points: all.
        moves: whether the seconds of moves count as recomputed.
    """
    found = {(p.log, p.policy, p.ratio): p for p in points}
    less, worse, compared = 0, [], 0
    for (log, policy, ratio), peer in found.items():
        mine = found.get((log, "coop", ratio))
        if policy not in ("dtr", "dte") or mine is None or not (mine.finished and peer.finished):
            continue
        compared += 1
        ours = mine.total_s if moves else mine.again_s
        less += ours < peer.again_s
        if ours > peer.again_s:
            worse.append([log, ratio, policy, ours, peer.again_s])
    return {"compared": compared, "strictly_less": less, "worse": worse}


def planned_ratio(points: Sequence[Point], logs: Sequence[str]) -> dict[str, Any]:
    """Compare planned with coop on the steps after the first: geometric mean, and the worst."""
    found = {(p.log, p.policy, p.ratio): p for p in points}
    rows = []
    for (log, policy, ratio), mine in found.items():
        coop = found.get((log, "coop", ratio))
        if policy == "planned" and log in logs and coop is not None and mine.finished and coop.finished:
            rows.append((mine.last_again_s, coop.last_again_s))
    shares = [max(a, 1e-6) / max(b, 1e-6) for a, b in rows if max(a, b) > 0]
    mean = math.exp(sum(map(math.log, shares)) / len(shares)) if shares else None
    return {"points": len(shares), "geometric_mean": mean, "worst": max(shares, default=None)}


def monotone(logs: Sequence[EvictionLog], policies: Sequence[Policy]) -> dict[str, dict[str, int]]:
    """Count ratios of a 5 % grid that fail, or recompute more, where the next lower one does not."""
    counts = {policy.name: {"feasibility": 0, "seconds": 0} for policy in policies}
    for log in logs:
        for policy in policies:
            row = [measure(log, policy, ratio) for ratio in FINE]
            for above, below in pairwise(row):
                counts[policy.name]["feasibility"] += below.finished and not above.finished
                both = below.finished and above.finished
                counts[policy.name]["seconds"] += both and above.again_s > below.again_s
    return counts


def search_time(num_pieces: int, policy: Policy, *, rounds: int = 300) -> dict[str, float]:
    """Time evictions in an arena full of equal pieces, each made from the two before it.

    Args:
        num_pieces: in the arena.
        policy: who is evicted.
        rounds: requests of one, two or three pieces.

    Returns:
        Microseconds of finding, evicting and updating, per eviction and per request: medians, and the
        longest.
    """
    unit = 4096
    arena = EvictionArena(num_pieces * unit, policy, simulated=True)
    recent: list[int] = []
    while len(recent) < num_pieces:
        arena.begin_op(1000 + len(recent) * 7919 % 9001, unit)
        one = arena.place(unit)
        arena.produced(one, 1000 + len(recent) * 7919 % 9001, recent[-2:])
        arena.advance(1000)
        recent.append(one)
    times: list[float] = []
    per_victim: list[float] = []
    for number in range(rounds):
        size = unit * (1 + number % 3)
        before = arena.statistics()
        arena.begin_op(1000 + number * 104729 % 9001, size)
        one = arena.place(size)
        after = arena.statistics()
        if after.evictions > before.evictions:
            times.append((after.search_ns - before.search_ns) / 1e3)
            per_victim.append(times[-1] / (after.evictions - before.evictions))
        parents = [other for other in recent[-2:] if arena.resident(other)]
        arena.produced(one, 1000 + number * 104729 % 9001, parents)
        arena.advance(1000)
        recent.append(one)
    return {
        "us_per_eviction": median(per_victim),
        "us_per_request": median(times),
        "us_per_request_longest": max(times),
        "pieces": float(arena.statistics().pieces),
    }


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Turn points into rows for a file."""
    return [asdict(point) for point in points]
