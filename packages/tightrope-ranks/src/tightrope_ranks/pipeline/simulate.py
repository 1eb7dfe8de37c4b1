"""The forecast of a schedule: when every action begins and ends, and the bytes that every rank holds.

Idea        A rank goes through its actions in order. Computing takes it along; messages run on a stream per
            directed pair of ranks, gathers and reductions on one per rank, each first in, first out. A
            message begins when it is sent, its receive is posted and the one before it has left.
Guarantee   Bytes are counted in the order of each rank's actions, as `lower` writes them down: a test holds
            the curve against what the judge counts in the executables.
Complexity  Linear in the actions.
Gaps        Pairs of ranks do not share a link's bandwidth; all replicas are alike and on time.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from tightrope.core import Machine, TightropeError
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.pipeline.language import Action, Orders
from tightrope_ranks.values.ranks import StageWork

Again: TypeAlias = Collection[tuple[int, int]]
"""(stage, micro-batch) whose forward keeps its input alone, and is computed again before its backward."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When actions run, and what ranks hold.

    Attributes:
        ns: of the step.
        spans: per rank and action, when it begins and ends; a transfer on its own stream.
        peaks: most bytes of every rank.
        curves: per rank, bytes after each action.
        busy: per rank, time in which it computes.
        tops: per rank, most bytes during each action.
        held: per rank, bytes before the step.
    """

    ns: Nanoseconds
    spans: tuple[tuple[tuple[Nanoseconds, Nanoseconds], ...], ...]
    peaks: tuple[Bytes, ...]
    curves: tuple[tuple[Bytes, ...], ...]
    busy: tuple[Nanoseconds, ...]
    tops: tuple[tuple[Bytes, ...], ...]
    held: tuple[Bytes, ...]


class DeadlockError(TightropeError):
    """Ranks wait for each other."""


def simulate(work: StageWork, machine: Machine, orders: Orders, *, again: Again = ()) -> Timeline:
    """Forecast a schedule with its messages.

    Args:
        work: whose stages the actions compute.
        machine: whose links the messages go over; device of rank r is r times the replicas.
        orders: actions of every rank, messages included.
        again: forwards that are computed again.

    Raises:
        DeadlockError: names the ranks that wait, and for what.
    """
    clock = _Clock(work, machine, orders, frozenset(again))
    clock.run()
    spans = tuple(tuple(row) for row in clock.spans)
    counted = [Count(work, rank, row, clock) for rank, row in enumerate(orders)]
    return Timeline(
        max((end for row in spans for _, end in row), default=0),
        spans,
        tuple(one.peak for one in counted),
        tuple(tuple(one.curve) for one in counted),
        tuple(clock.busy),
        tuple(tuple(one.tops) for one in counted),
        tuple(work.held(rank) for rank in range(len(orders))),
    )


class _Clock:
    """The clocks of all ranks and streams."""

    def __init__(self, work: StageWork, machine: Machine, orders: Orders, again: frozenset[tuple[int, int]]):
        self.work, self.machine, self.orders, self.again = work, machine, orders, again
        ranks = range(len(orders))
        self.at = [0] * len(orders)
        self.now = [0] * len(orders)
        self.busy = [0] * len(orders)
        self.streams = [0] * len(orders)  # of gathers and reductions
        self.spans: list[list[tuple[int, int]]] = [[(0, 0)] * len(orders[rank]) for rank in ranks]
        self.done: dict[tuple[int, str, int], int] = {}  # values that are there, by name
        self.gathered: dict[int, int] = {}
        self.posted: dict[tuple[int, int], list[tuple[int, int, Action]]] = {}
        self.sends: dict[tuple[int, int], list[tuple[int, int, Action]]] = {}
        self.matched: dict[tuple[int, int], int] = {}
        self.link: dict[tuple[int, int], int] = {}
        self.costs: dict[tuple[int, int, int], tuple[int, int]] = {}

    def run(self) -> None:
        waiting = list(range(len(self.orders)))
        while waiting:
            moved = [rank for rank in waiting if self._advance(rank)]
            waiting = [rank for rank in waiting if self.at[rank] < len(self.orders[rank])]
            if waiting and not moved:
                said = ", ".join(f"rank {r} at {self.orders[r][self.at[r]]}" for r in waiting[:8])
                raise DeadlockError(f"the ranks wait for each other: {said}. Give each what it waits for.")

    def _advance(self, rank: int) -> bool:
        before = self.at[rank]
        row = self.orders[rank]
        while self.at[rank] < len(row) and self._take(rank, row[self.at[rank]]):
            self.at[rank] += 1
        return self.at[rank] > before

    def _take(self, rank: int, action: Action) -> bool:
        stage, kind, _ = action
        cost, begin = self.work.stages[stage], self.now[rank]
        if kind in ("UNSHARD", "REDUCE_GRAD"):
            alone = self.work.replicas == 1 and not self.work.sharded
            taken = 0 if alone else cost.gather if kind == "UNSHARD" else cost.reduce
            begin = max(begin, self.streams[rank])
            end = begin + taken
            if taken:
                self.streams[rank] = end
            if kind == "UNSHARD":
                self.gathered[stage] = end
        elif kind == "RESHARD":
            self.gathered.pop(stage, None)
            end = begin
        elif kind in "FBIW":
            return self._compute(rank, action)
        else:
            self._message(rank, action)
            return True
        self.spans[rank][self.at[rank]] = (begin, end)
        return True

    def _compute(self, rank: int, action: Action) -> bool:
        stage, kind, micro = action
        ready = self._ready(action)
        if ready is None:
            return False
        if self.work.sharded:
            if stage not in self.gathered:
                raise DeadlockError(f"rank {rank} computes {action} on parameters that are not gathered.")
            ready = max(ready, self.gathered[stage])
        begin = max(ready, self.now[rank])
        taken = self.duration(action)
        self.now[rank] = end = begin + taken
        self.busy[rank] += taken
        self.spans[rank][self.at[rank]] = (begin, end)
        self.done[stage, "B" if kind == "I" else kind, micro] = end
        return True

    def duration(self, action: Action) -> Nanoseconds:
        stage, kind, micro = action
        cost = self.work.stages[stage]
        if kind == "F":
            return cost.forward
        if kind == "W":
            return cost.weight
        first = cost.forward if (stage, micro) in self.again else 0
        return first + cost.backward + (cost.weight if kind == "B" else 0)

    def _ready(self, action: Action) -> int | None:
        """Find when what a computation reads is there; None while that is not known."""
        stage, kind, micro = action
        owners = self.work.owners
        if kind == "W":
            return self.done.get((stage, "B", micro))
        needs = []
        if kind == "F":
            if stage:
                local = owners[stage - 1] == owners[stage]
                needs.append((stage - 1, "F", micro) if local else (stage, "RECV_F", micro))
        else:
            needs.append((stage, "F", micro))
            if self.work.hands_back(stage + 1):
                local = owners[stage + 1] == owners[stage]
                needs.append((stage + 1, "B", micro) if local else (stage, "RECV_B", micro))
        found = [self.done.get(need) for need in needs]
        return None if None in found else max((one for one in found if one is not None), default=0)

    def _message(self, rank: int, action: Action) -> None:
        stage, kind, _ = action
        ahead = 1 if kind in ("SEND_F", "RECV_B") else -1
        peer = self.work.owners[stage + ahead]
        sends = kind.startswith("SEND")
        pair = (rank, peer) if sends else (peer, rank)
        book = self.sends if sends else self.posted
        book.setdefault(pair, []).append((rank, self.at[rank], action))
        self.spans[rank][self.at[rank]] = (self.now[rank], self.now[rank])
        sent, posted = self.sends.get(pair, []), self.posted.get(pair, [])
        while (k := self.matched.get(pair, 0)) < min(len(sent), len(posted)):
            self._transfer(pair, sent[k], posted[k])
            self.matched[pair] = k + 1

    def _transfer(
        self, pair: tuple[int, int], sent: tuple[int, int, Action], got: tuple[int, int, Action]
    ) -> None:
        stage, kind, micro = sent[2]
        there = Action(stage + (1 if kind == "SEND_F" else -1), "RECV" + kind[4:], micro)
        if got[2] != there:
            raise DeadlockError(f"rank {pair[1]} receives {got[2]} where rank {pair[0]} sends {sent[2]}.")
        latency, taken = self._price(pair, self.work.stages[max(stage, there.stage)].input)
        posted = self.spans[got[0]][got[1]][0]
        begin = max(self.spans[sent[0]][sent[1]][0], posted, self.link.get(pair, 0))
        self.link[pair] = begin + taken
        end = begin + latency + taken
        self.spans[sent[0]][sent[1]] = self.spans[got[0]][got[1]] = (begin, end)
        self.done[there.stage, there.kind, micro] = end

    def _price(self, pair: tuple[int, int], size: Bytes) -> tuple[int, int]:
        key = (*pair, size)
        if key not in self.costs:
            link = self.machine.links[
                self.machine.link(pair[0] * self.work.replicas, pair[1] * self.work.replicas)
            ]
            latency = round(1e9 * link.latency)
            self.costs[key] = latency, link.message_ns(size) - latency
        return self.costs[key]


class Count:
    """The bytes of one rank, action by action."""

    def __init__(self, work: StageWork, rank: int, row: tuple[Action, ...], clock: _Clock) -> None:
        self.work, self.rank = work, rank
        self.live = self.peak = work.held(rank)
        self.curve: list[Bytes] = []
        self.top: Bytes = self.live
        self.tops: list[Bytes] = []
        self.leaving: list[tuple[int, Bytes]] = []  # (end of the transfer, bytes) of gradients being sent
        self.grown: set[int] = set()
        for at, action in enumerate(row):
            begin, end = clock.spans[rank][at]
            self.top = 0
            self._take(action, begin, end, clock.again)
            self.curve.append(self.live)
            self.tops.append(max(self.top, self.live))

    def _change(self, size: Bytes) -> None:
        self.live += size
        self._inside(0)

    def _take(self, action: Action, begin: int, end: int, again: frozenset[tuple[int, int]]) -> None:
        stage, kind, micro = action
        cost, owners = self.work.stages[stage], self.work.owners
        if kind in COMPUTES:
            stay = [one for one in self.leaving if one[0] > begin]
            self.live -= sum(size for _, size in self.leaving) - sum(size for _, size in stay)
            self.leaving = stay
        match kind:
            case "RECV_F":
                self._change(cost.input)
            case "RECV_B":
                self._change(cost.output)
            case "SEND_B":
                self.leaving.append((end, cost.input))
            case "UNSHARD":
                self._change(cost.parameters)
            case "RESHARD":
                self.live -= cost.parameters
            case "REDUCE_GRAD":
                if stage in self.grown:
                    self.leaving.append((end, cost.whole_gradients))
            case "F":
                self._change(cost.output + (0 if (stage, micro) in again else cost.saved))
                self._inside(cost.work + (cost.saved if (stage, micro) in again else 0))
            case "B" | "I" | "W":
                self._backward(action, again, owners)
            case _:
                pass

    def _inside(self, size: Bytes) -> None:
        self.top = max(self.top, self.live + size)
        self.peak = max(self.peak, self.top)

    def _backward(self, action: Action, again: frozenset[tuple[int, int]], owners: tuple[int, ...]) -> None:
        stage, kind, micro = action
        cost = self.work.stages[stage]
        if kind != "I" and self.work.sharded and stage not in self.grown:
            self.grown.add(stage)
            self._change(cost.whole_gradients)
        if kind == "W":
            self._inside(cost.work)
            self.live -= cost.half
            return
        if (stage, micro) in again:
            self._change(cost.saved)
        makes = cost.input if self.work.hands_back(stage) else 0
        half = cost.half if kind == "I" else 0
        self._change(makes + half)
        self._inside(cost.work)
        gone = cost.saved + cost.output
        gone += cost.output if self.work.hands_back(stage + 1) else 0  # the gradient that came
        gone += cost.input if stage and owners[stage - 1] != owners[stage] else 0
        self.live -= gone


COMPUTES = frozenset("FBIW")
