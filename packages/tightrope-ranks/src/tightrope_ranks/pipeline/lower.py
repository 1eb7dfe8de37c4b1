"""A schedule as one executable per rank.

Idea        Every action becomes the instructions that do it: what it makes begins inside of it, what nobody
            needs any more ends right behind it, and what is being sent ends behind a wait, before the first
            computation that begins after the forecast end of the transfer.
Guarantee   The same bytes, at the same places, as `simulate` counts. `tightrope_ranks.judge.ranks` walks the
            result and shares no code with it.
Complexity  Linear in the actions.
Gaps        Allocations have no planned addresses: the runtime's allocator chooses them.
"""

from collections.abc import Sequence

from tightrope.core import (
    Alloc,
    Collective,
    Executable,
    Instruction,
    Machine,
    Recv,
    Release,
    Result,
    Resume,
    Return,
    Run,
    Send,
    Space,
    Sync,
    View,
)
from tightrope.core.executable import ARENA, CALLER
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.pipeline.language import Action, Orders
from tightrope_ranks.pipeline.simulate import Again, Timeline, simulate
from tightrope_ranks.values.ranks import JointPlan, RankPlan, StageWork

ROOM: Bytes = 2**60
"""Capacity of a space that nothing limits."""


def lower(
    work: StageWork,
    machine: Machine,
    orders: Orders,
    *,
    again: Again = (),
    limits: Sequence[Bytes] = (),
    ns_bound: Nanoseconds = 0,
    method: str = "",
    seed: int = 0,
) -> JointPlan:
    """Write a schedule down as a plan of all ranks.

    Args:
        work: that it does.
        machine: whose links messages go over.
        orders: actions of every rank, messages included.
        again: (stage, micro-batch) whose forward is computed again before its backward.
        limits: bytes of every rank; empty or 0 = no limit.
        ns_bound: proved lower bound of the time.
        method: how it was found.
        seed: of the search.

    Raises:
        DeadlockError: the ranks wait for each other.
    """
    timeline = simulate(work, machine, orders, again=again)
    ranks = []
    for rank, row in enumerate(orders):
        limit = limits[rank] if limits else 0
        books = _Books(work, machine, rank, frozenset(again))
        ranks.append(RankPlan(rank, limit, timeline.peaks[rank], books.lower(row, timeline)))
    return JointPlan(work, machine, tuple(ranks), timeline.ns, ns_bound, method, seed)


class _Books:
    """Instructions of one rank so far, and the buffer of every value."""

    def __init__(self, work: StageWork, machine: Machine, rank: int, again: frozenset[tuple[int, int]]):
        self.work, self.machine, self.rank, self.again = work, machine, rank, again
        self.out: list[Instruction] = []
        self.num_buffers = 0
        self.sizes: list[Bytes] = []
        self.of: dict[tuple[str, int, int], int] = {}
        self.unsynced: set[int] = set()
        self.incoming: set[int] = set()
        self.leaving: list[tuple[Nanoseconds, int, int]] = []  # end, what to wait for, what ends
        self.runs = 0

    def lower(self, row: Sequence[Action], timeline: Timeline) -> Executable:
        parts = self.work.replicas if self.work.sharded else 1
        for stage in self.work.local(self.rank):
            cost = self.work.stages[stage]
            self.out.append(self._alloc("P", stage, -1, -(-cost.parameters // parts), CALLER))
            self.out.append(self._alloc("A", stage, -1, -(-cost.state // parts), CALLER))
        self.out.append(Resume(0))
        for at, action in enumerate(row):
            self._take(action, *timeline.spans[self.rank][at])
        self._leave(None)
        for buffer in sorted(self.unsynced):
            self.out.append(Sync(buffer))
        for number, tie in enumerate(self.work.ties):
            if mine := [stage for stage in tie.stages if self.work.owners[stage] == self.rank]:
                buffer = self.of["A", mine[0], -1]
                self.out += [Collective("all_reduce", buffer, buffer, number, f"{number}TIED"), Sync(buffer)]
        self.out.append(Return(-1))
        spaces = tuple(Space(name, ROOM, device=self.machine.device) for name in ("caller", "arena", "heap"))
        return Executable(
            self.work.fingerprint, spaces, tuple(self.out), machine=self.machine.name, placed=False
        )

    # buffers

    def _alloc(self, kind: str, stage: int, micro: int, size: Bytes, space: int = ARENA) -> Alloc:
        buffer = self.num_buffers
        self.num_buffers += 1
        self.sizes.append(size)
        self.of[kind, stage, micro] = buffer
        return Alloc(buffer, space, size)

    def _release(self, kind: str, stage: int, micro: int) -> None:
        buffer = self.of.pop((kind, stage, micro))
        self._sync(buffer)
        self.out.append(Release(buffer))

    def _sync(self, buffer: int) -> None:
        if buffer in self.unsynced:
            self.unsynced.discard(buffer)
            self.out.append(Sync(buffer))

    def _view(self, buffer: int) -> View:
        return View(buffer, "uint8", (self.sizes[buffer],), (1,))

    def _leave(self, now: Nanoseconds | None) -> None:
        """End what has been sent or reduced by now."""
        for end, awaited, buffer in self.leaving:
            if now is None or end <= now:
                self._sync(awaited)
                self.out.append(Release(buffer))
        self.leaving = [one for one in self.leaving if now is not None and one[0] > now]

    # actions

    def _take(self, action: Action, begin: Nanoseconds, end: Nanoseconds) -> None:
        stage, kind, micro = action
        cost = self.work.stages[stage]
        match kind:
            case "F" | "B" | "I" | "W":
                self._leave(begin)
                self._compute(action)
            case "RECV_F" | "RECV_B":
                made = (stage - 1, "F") if kind == "RECV_F" else (stage + 1, "B")
                size = cost.input if kind == "RECV_F" else cost.output
                self.out.append(self._alloc(made[1], made[0], micro, size))
                self._start_receive(made, micro)
            case "SEND_F" | "SEND_B":
                self._start_send(action, end)
            case "UNSHARD":
                self.out.append(self._alloc("G", stage, -1, cost.parameters))
                self._collective("all_gather", self.of["P", stage, -1], self.of["G", stage, -1], action)
            case "RESHARD":
                self._release("G", stage, -1)
            case _:
                self._reduce(action, end)

    def _start_receive(self, made: tuple[int, str], micro: int) -> None:
        stage, kind = made
        buffer, peer = self.of[kind, stage, micro], self.work.owners[stage]
        self.out.append(Recv(buffer, peer, f"{stage}{kind}{micro}", self._link(peer)))
        self.unsynced.add(buffer)
        self.incoming.add(buffer)

    def _start_send(self, action: Action, end: Nanoseconds) -> None:
        stage, kind, micro = action
        made = "F" if kind == "SEND_F" else "B"
        buffer, peer = self.of[made, stage, micro], self.work.owners[stage + (1 if made == "F" else -1)]
        self.out.append(Send(buffer, peer, f"{stage}{made}{micro}", self._link(peer)))
        self.unsynced.add(buffer)
        if made == "B":
            del self.of[made, stage, micro]
            self.leaving.append((end, buffer, buffer))

    def _link(self, peer: int) -> int:
        return self.machine.link(self.rank * self.work.replicas, peer * self.work.replicas)

    def _collective(self, kind: str, source: int, target: int, action: Action) -> None:
        cost = self.work.stages[action.stage]
        ns = cost.gather if kind == "all_gather" else cost.reduce
        self.out.append(Collective(kind, source, target, -1, str(action), ns=ns))  # type: ignore[arg-type]
        self.unsynced.add(target)
        self.incoming.add(target)

    def _reduce(self, action: Action, end: Nanoseconds) -> None:
        whole, mine = self.of.get(("D", action.stage, -1)), self.of["A", action.stage, -1]
        if self.work.replicas == 1 and whole is None:
            return
        if whole is None:
            self._collective("all_reduce", mine, mine, action)
        else:
            self._collective("reduce_scatter", whole, mine, action)
            del self.of["D", action.stage, -1]
            self.leaving.append((end, mine, whole))

    def _temporary(self, size: Bytes) -> Alloc:
        self.num_buffers += 1
        self.sizes.append(size)
        return Alloc(self.num_buffers - 1, ARENA, size)

    def _run(
        self,
        name: str,
        action: Action,
        ns: Nanoseconds,
        reads: Sequence[int],
        makes: Sequence[Alloc],
        hidden: Bytes = 0,
    ) -> None:
        """Run a part of a stage; temporaries of ``hidden`` bytes and of its own live inside."""
        stage, _, micro = action
        reads = list(reads)
        if self.work.sharded:
            reads.append(self.of["G", stage, -1])
        else:
            reads.append(self.of["P", stage, -1])
        for buffer in reads:
            if buffer in self.incoming:  # what goes out may be read meanwhile
                self._sync(buffer)
        spare = [self._temporary(size) for size in (hidden, self.work.stages[stage].work)]
        ends = tuple(Release(one.buffer) for one in spare)
        inside: tuple[Alloc | Release, ...] = (*makes, *spare, *ends)
        self.out.append(
            Run(
                self.runs,
                f"stage.{name}",
                tuple(map(self._view, reads)),
                (("stage", stage), ("micro_batch", micro)),
                tuple(Result(k, self._view(one.buffer)) for k, one in enumerate(makes)),
                inside,
                ns,
            )
        )
        self.runs += 1

    def _compute(self, action: Action) -> None:
        stage, kind, micro = action
        cost = self.work.stages[stage]
        redo = (stage, micro) in self.again
        given = [self.of["F", stage - 1, micro]] if stage and kind != "W" else []
        if kind == "F":
            makes = [self._alloc("F", stage, micro, cost.output)]
            makes += [] if redo else [self._alloc("S", stage, micro, cost.saved)]
            self._run("forward", action, cost.forward, given, makes, cost.saved if redo else 0)
        elif kind == "W":
            read = [self.of["H", stage, micro], self._accumulator(stage)]
            self._run("backward_weight", action, cost.weight, read, ())
            self._release("H", stage, micro)
        else:
            if redo:  # as torch's runtime does: first the gradient comes, then the forward is computed again
                if (arrived := self.of.get(("B", stage + 1, micro))) is not None:
                    self._sync(arrived)
                made = [self._alloc("S", stage, micro, cost.saved)]
                self._run("recompute", action, cost.forward, given, made)
            self._backward(action, given)

    def _backward(self, action: Action, given: Sequence[int]) -> None:
        stage, kind, micro = action
        cost, whole = self.work.stages[stage], kind == "B"
        reads = [*given, self.of["F", stage, micro], self.of["S", stage, micro]]
        if self.work.hands_back(stage + 1):
            reads.append(self.of["B", stage + 1, micro])
        if whole:
            reads.append(self._accumulator(stage))
        makes = [self._alloc("B", stage, micro, cost.input)] if self.work.hands_back(stage) else []
        if not whole:
            makes.append(self._alloc("H", stage, micro, cost.half))
        self._run(
            "backward" if whole else "backward_input",
            action,
            cost.backward + (cost.weight if whole else 0),
            reads,
            makes,
        )
        if stage and self.work.owners[stage - 1] != self.rank:
            self._release("F", stage - 1, micro)
        self._release("F", stage, micro)
        if self.work.hands_back(stage + 1):
            self._release("B", stage + 1, micro)
        self._release("S", stage, micro)

    def _accumulator(self, stage: int) -> int:
        """The buffer that gradients of parameters are added into: whole where parameters are divided."""
        if not self.work.sharded:
            return self.of["A", stage, -1]
        if ("D", stage, -1) not in self.of:
            self.out.append(self._alloc("D", stage, -1, self.work.stages[stage].whole_gradients))
        return self.of["D", stage, -1]
