"""Policies on logs: what each recomputes at which memory ratio, and what follows from that."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from tightrope.core import InfeasibleError
from tightrope.run.evict.policies import (
    COOP,
    COOP_AS_PUBLISHED,
    DTE,
    DTR,
    LRU,
    SIZE,
    Policy,
    Score,
)
from tightrope_planners.evict.arena import OwnArena
from tightrope_planners.evict.log import EvictionLog
from tightrope_planners.evict.simulate import live_peak, simulate

RATIOS: Final = (90, 50)
ALL_RATIOS: Final = (90, 80, 70, 60, 50, 40, 30, 20, 10)
FINE: Final = tuple(range(95, 5, -5))
ON_GRID: Final = (COOP, DTR, DTE)
"""Measured at every ratio of `FINE`."""
POLICIES: Final = (COOP, DTR, DTE, LRU, SIZE)
ABLATIONS: Final = (
    replace(COOP, name="without moves", relocate=False),
    replace(COOP, name="without two ends", two_ends=False),
    replace(COOP, name="without in-place", in_place=False),
    replace(COOP, name="without soft pins", soft_pins=False),
    replace(COOP, name="without dependence", neighbours=1),
    replace(COOP, name="without order", unheld=1),
    replace(COOP, name="without bytes of windows", per_byte=False),
    replace(COOP, name="without flat staleness", flat=False),
    replace(COOP, name="without pairs", pairs=False),
    COOP_AS_PUBLISHED,
    replace(COOP_AS_PUBLISHED, name="published, one end", two_ends=False),
    replace(COOP_AS_PUBLISHED, name="published, no in-place", in_place=False),
    replace(COOP_AS_PUBLISHED, name="published, no window", score=Score.COST_SIZE_STALENESS, window=False),
    replace(DTR, name="dtr, own cost only", neighbours=0),
    replace(DTR, name="dtr, sampling", sample=True),
)

BASELINES: Final = {
    "without": "coop",
    "published": COOP_AS_PUBLISHED.name,
    "coop_as_published": "coop",
    "dtr": "dtr",
}
"""What a variant is compared with, by the first word of its name."""


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
        *(log.name, policy.name, ratio, True, again, moved),
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

    Returns:
        Counts, the points at which coop takes more, and the worst of them: log, ratio, peer, coop's seconds,
        the peer's; also the points that only coop finishes, and those that only the peer does.
    """
    found = {(p.log, p.policy, p.ratio): p for p in points}
    less, worse, compared, alone, behind = 0, list[list[Any]](), 0, 0, list[list[Any]]()
    for (log, policy, ratio), peer in found.items():
        mine = found.get((log, "coop", ratio))
        if policy not in ("dtr", "dte") or mine is None:
            continue
        alone += mine.finished and not peer.finished
        if peer.finished and not mine.finished:
            behind.append([log, ratio, policy])
        if not (mine.finished and peer.finished):
            continue
        compared += 1
        ours = mine.total_s if moves else mine.again_s
        less += ours < peer.again_s
        if ours > peer.again_s:
            worse.append([log, ratio, policy, ours, peer.again_s])
    return {
        "compared": compared,
        "strictly_less": less,
        "worse": worse,
        "worst": max(worse, key=lambda row: row[3] / max(row[4], 1e-6), default=None),
        "only_coop_finishes": alone,
        "only_peer_finishes": behind,
    }


def totals(points: Sequence[Point]) -> dict[str, Any]:
    """Add up, per policy, the points that all policies finish; count those that it finishes."""
    policies = list(dict.fromkeys(point.policy for point in points))
    done: dict[tuple[str, int], int] = {}
    for point in points:
        done[point.log, point.ratio] = done.get((point.log, point.ratio), 0) + point.finished
    common = {key for key, count in done.items() if count == len(policies)}
    found: dict[str, Any] = {}
    for policy in policies:
        mine = [point for point in points if point.policy == policy]
        both = [point for point in mine if (point.log, point.ratio) in common]
        evicting = [point for point in both if point.evictions]
        found[policy] = {
            "again_s": sum(point.again_s for point in both),
            "moved_s": sum(point.moved_s for point in both),
            "fragmentation": fmean(point.fragmentation for point in evicting) if evicting else 0.0,
            "search_us": median(point.search_us for point in evicting) if evicting else 0.0,
            "finishes": sum(point.finished for point in mine),
            "of": len(mine),
        }
    return {"common": len(common), "policies": found}


def ablated(points: Sequence[Point]) -> dict[str, Any]:
    """Compare every variant with what it is a variant of, at the points that both finish."""
    found = {(p.log, p.policy, p.ratio): p for p in points}
    rows: dict[str, Any] = {}
    for policy in (one.name for one in ABLATIONS):
        against = BASELINES[policy.replace(",", "").split(" ")[0]]
        mine = [point for point in points if point.policy == policy]
        if not mine:
            continue
        pairs = [(point, found[point.log, against, point.ratio]) for point in mine]
        both = [(a, b) for a, b in pairs if a.finished and b.finished and (a.evictions or b.evictions)]
        rows[policy] = {
            "against": against,
            "points": len(both),
            "finishes": sum(point.finished for point in mine),
            "baseline_finishes": sum(point.finished for _, point in pairs),
            "seconds": sum(a.total_s for a, _ in both) / max(1e-9, sum(b.total_s for _, b in both)),
            "worst": max((a.total_s / max(1e-6, b.total_s) for a, b in both), default=0.0),
            "fragmentation": fmean([a.fragmentation for a, _ in both] or [0.0]),
            "baseline_fragmentation": fmean([b.fragmentation for _, b in both] or [0.0]),
        }
    return rows


def monotone(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Count, per policy, ratios that fail, or recompute more, where the next lower one does not.

    Returns:
        Counts and the worst: log, ratio, its seconds, the seconds at the next lower ratio.
    """
    counts: dict[str, dict[str, Any]] = {}
    for policy in dict.fromkeys(point.policy for point in points):
        feasibility, pairs, more = 0, 0, list[tuple[str, int, float, float]]()
        for log in dict.fromkeys(point.log for point in points):
            mine = [point for point in points if (point.log, point.policy) == (log, policy)]
            for above, below in pairwise(sorted(mine, key=lambda point: -point.ratio)):
                feasibility += below.finished and not above.finished
                if not (below.finished and above.finished):
                    continue
                pairs += 1
                if above.again_s > below.again_s:
                    more.append((log, above.ratio, above.again_s, below.again_s))
        worst = max(more, key=lambda row: row[2] / max(row[3], 1e-6), default=None)
        counts[policy] = {"feasibility": feasibility, "seconds": len(more), "pairs": pairs, "worst": worst}
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
    arena = OwnArena(num_pieces * unit, policy, simulated=True)
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
