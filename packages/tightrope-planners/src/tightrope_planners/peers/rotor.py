"""Rotor: the optimal persistent schedule of a heterogeneous chain, by dynamic programming.

Idea        C(s, t, m) = least time to bring the chain from the input of segment s to the gradient at s,
            the gradient at t being there, with m bytes. Either sweep to some s' keeping only its input,
            solve (s', t) with that input held, then (s, s'-1); or run s keeping all that its backward
            reads, and solve (s+1, t) beside it.
Source      Beaumont et al., Optimal checkpointing for heterogeneous chains (2019), theorem 1
Guarantee   On a chain of one op per segment and direction: the least time of all *persistent* schedules
            (a checkpoint stays until its backward), up to rounding bytes to the granule.
Complexity  O(L^3 * slots) time, O(L^2 * slots) memory for L segments
Gaps        Where segments hold several ops, bytes inside them are estimates: the candidates of every
            memory are measured, and the cheapest that fits is taken. Adjacent segments are joined above
            `RotorKnobs.max_segments`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes, Graph, Limits, Machine, Schedule, round_up
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.model import Pair
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand
from tightrope_planners.peers.chain import Chain, Rerun, best_reruns, chain_of, joined
from tightrope_planners.peers.chain_sizes import Pass, SegmentSizes, segment_sizes

_NEVER = 2**60


@dataclass(frozen=True, slots=True)
class RotorKnobs:
    """Knobs of the dynamic program.

    Attributes:
        slots: granules of memory up to the peak without re-runs; each is a multiple of 64 bytes.
        max_segments: of the chain.
    """

    slots: int = 800
    max_segments: int = 100


def rotor(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Plan a chain with Rotor's dynamic program; the closest candidate where none fits.

    Raises:
        TightropeError: the forward pass is not a chain.
    """
    del machine
    chain = chain_of(graph, planner="rotor")
    return expand(graph, rotor_pairs(chain, live_limit(graph, limits), options=options))


def rotor_pairs(
    chain: Chain, limit: Bytes, *, knobs: RotorKnobs | None = None, options: Options | None = None
) -> tuple[Pair, ...]:
    """Find the cheapest persistent set of re-runs that fits ``limit`` live bytes."""
    knobs, options = knobs or RotorKnobs(), options or Options()
    chain = joined(chain, knobs.max_segments)
    plain = open_solver(chain.model).state(0).peak
    table = Rotor(segment_sizes(chain), plain, slots=knobs.slots)
    return best_reruns(chain, ((), *table.candidates()), limit, options)


class Rotor:
    """The table C(s, t, m) of one chain; segments count from 0, memory in granules."""

    def __init__(self, sizes: tuple[SegmentSizes, ...], most: Bytes, *, slots: int) -> None:
        self.sizes = sizes
        self.granule = round_up(max(64, -(-most // slots)))
        self.slots = most // self.granule
        self.cost: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        for length in range(len(sizes)):
            for start in range(len(sizes) - length):
                options = [cost for _, cost in self._choices(start, start + length)]
                self.cost[start, start + length] = np.min(options, axis=0)

    def candidates(self) -> Iterator[list[Rerun]]:
        """List the best re-runs for the least memory of every time that is reached, fastest first."""
        whole = self.cost[0, len(self.sizes) - 1]
        for memory in range(self.slots, -1, -1):
            if whole[memory] < _NEVER and (memory == 0 or whole[memory] != whole[memory - 1]):
                yield self._reruns(memory)

    def _choices(self, s: int, t: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """List what the first move on (s, t) may be, with its cost by memory: save s, or sweep to s'."""
        yield s, self._save(s, t)
        least, ns = 0, 0
        for middle in range(s + 1, t + 1):
            part = self._pass(middle - 1, t, "sweep")
            least = max(least, part.alone if middle == s + 1 else part.carried)
            ns += 0 if self._is_first(t) else part.ns
            held = self._shift(self.cost[middle, t], self.sizes[middle - 1].handover)
            total = held + self.cost[s, middle - 1] + ns
            yield middle, self._above(total, least + self._base(t))

    def _save(self, s: int, t: int) -> npt.NDArray[np.int64]:
        part = self._pass(s, t, "last" if s == t and not self._is_first(t) else "all")
        rest = np.zeros(self.slots + 1, dtype=np.int64)
        if s < t:
            rest = self._shift(self.cost[s + 1, t], self.sizes[s].saved)
        cost = rest + (0 if self._is_first(t) else part.ns)
        return self._above(cost, max(part.alone + self._base(t), self.sizes[s].backward))

    def _pass(self, segment: int, t: int, mode: str) -> Pass:
        result: Pass = getattr(self.sizes[segment], f"first_{mode}" if self._is_first(t) else mode)
        return result

    def _is_first(self, t: int) -> bool:
        """Whether the forward of (s, t) is the first pass over the chain."""
        return t == len(self.sizes) - 1

    def _base(self, t: int) -> Bytes:
        return 0 if self._is_first(t) else self.sizes[t].base

    def _shift(self, cost: npt.NDArray[np.int64], size: Bytes) -> npt.NDArray[np.int64]:
        slots = min(-(-size // self.granule), self.slots + 1)
        return np.concatenate([np.full(slots, _NEVER), cost[: self.slots + 1 - slots]])

    def _above(self, cost: npt.NDArray[np.int64], least: Bytes) -> npt.NDArray[np.int64]:
        cost[: min(-(-least // self.granule), self.slots + 1)] = _NEVER
        return np.minimum(cost, _NEVER)

    def _reruns(self, memory: int) -> list[Rerun]:
        """Walk the best choices from the whole chain down."""
        result: list[Rerun] = []
        waiting = [(0, len(self.sizes) - 1, memory)]
        while waiting:
            s, t, m = waiting.pop()
            middle = min(self._choices(s, t), key=lambda choice: int(choice[1][m]))[0]
            swept = range(s, max(middle, s + 1))
            if not self._is_first(t):
                result += [(t, segment) for segment in swept]
            held = self.sizes[middle - 1].handover if middle > s else self.sizes[s].saved
            rest = m - -(-held // self.granule)
            if middle > s:
                waiting += [(middle, t, rest), (s, middle - 1, m)]
            elif s < t:
                waiting.append((s + 1, t, rest))
        return result
