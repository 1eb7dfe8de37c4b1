"""The best plan of a small case.

Idea        Build every schedule in order of start times: append a frame to a processor, as early as it can
            start and not before the frame appended last. Whatever is never appended is dropped. A branch ends
            where what it has earned and the most that the rest could earn is no more than the best found.
Source      Branch and bound over semi-active schedules; exhaustive search without the bound.
Guarantee   The score is the largest of any plan, in strict rules without an arena: an earlier end never earns
            less, so some best plan starts every frame as early as its order allows.
Complexity  Exponential; refused beyond 12 requests.
Gaps        Compatible rules and arenas are for the search alone.
"""

from dataclasses import dataclass

from tightrope.core import TightropeError
from tightrope_fleet.streams.frames import StreamCase
from tightrope_fleet.streams.score import frugality, realtime
from tightrope_fleet.values.streams import FrameChoice

MOST_REQUESTS = 12


@dataclass(frozen=True, slots=True)
class Best:
    """The best plan: its score, and its decisions, those that run first."""

    score: float
    choices: tuple[FrameChoice, ...]


def best_plan(case: StreamCase) -> Best:
    """Find the best plan of a case of at most 12 requests in strict rules.

    Raises:
        TightropeError: the case is larger, has an arena, or compatible rules.
    """
    if case.compatible or case.machine.arena or case.num_requests > MOST_REQUESTS:
        raise TightropeError(
            f"{case.num_requests} requests, {case.rules} rules, arena {case.machine.arena}: the exact "
            f"method takes at most {MOST_REQUESTS} requests in strict rules without an arena. "
            "Use plan_streams."
        )
    return _Exhaustive(case).run()


class _Exhaustive:
    def __init__(self, case: StreamCase) -> None:
        self.case = case
        self.frames = [(m, f) for m, row in enumerate(case.wanted) for f, asked in enumerate(row) if asked]
        num_models = len({m for m, _ in self.frames})
        self.weight = [
            100 * model.quality / max(1, sum(row)) / max(1, num_models)
            for model, row in zip(case.scenario.models, case.wanted, strict=True)
        ]
        self.best, self.chosen = -1.0, tuple[tuple[int, int, int], ...]()

    def run(self) -> Best:
        processors = len(self.case.machine.processors)
        self.extend([], dict[tuple[int, int], float](), [0.0] * processors, 0.0, 0.0)
        runs = [FrameChoice(m, f, p) for m, f, p in self.chosen]
        running = {(one.model, one.frame) for one in runs}
        dropped = [FrameChoice(m, f, -1) for m, f in self.frames if (m, f) not in running]
        return Best(self.best, (*runs, *dropped))

    def extend(
        self,
        order: list[tuple[int, int, int]],
        ends: dict[tuple[int, int], float],
        free: list[float],
        last: float,
        earned: float,
    ) -> None:
        if earned > self.best + 1e-12:
            self.best, self.chosen = earned, tuple(order)
        left = [one for one in self.frames if one not in ends]
        options = [
            (self.worth(m, f, p, start), m, f, p, start)
            for m, f in left
            for p in range(len(free))
            if (start := self.start(m, f, free[p], last, ends)) is not None
        ]
        most: dict[tuple[int, int], float] = {}
        for m, f in left:
            most[m, f] = max(
                self.worth(m, f, p, max(free[p], self.case.release[m][f])) for p in range(len(free))
            )
        if earned + sum(most.values()) <= self.best + 1e-12:
            return
        for worth, m, f, p, start in sorted(options, reverse=True):
            end = start + self.case.duration[p][m]
            was, free[p] = free[p], end
            order.append((m, f, p))
            self.extend(order, {**ends, (m, f): end}, free, start, earned + worth)
            order.pop()
            free[p] = was

    def start(
        self, m: int, f: int, free: float, last: float, ends: dict[tuple[int, int], float]
    ) -> float | None:
        """When a frame can start; None where what it needs is not there, or it is dropped before."""
        case = self.case
        needed = [(u, frames[f]) for u, frames in zip(case.upstream[m], case.needs[m], strict=True)]
        if any(one not in ends for one in needed):
            return None
        start = max(free, last, case.release[m][f], *(ends[one] for one in needed))
        return start if start <= case.deadline[m][f] else None

    def worth(self, m: int, f: int, p: int, start: float) -> float:
        late = start + self.case.duration[p][m] - self.case.deadline[m][f]
        mj = self.case.machine.processors[p].costs[self.case.scenario.models[m].name].mj
        return self.weight[m] * frugality(mj, clamped=True) * realtime(late)
