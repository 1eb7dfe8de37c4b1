"""What is planned as one: a captured graph, several calls together, or what is left of one.

A unit has a graph, and for the room that is left a plan, made ready to run. The plan is kept while it
suits, and known plans are remembered; every new one is judged, and checked in its first run.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from tightrope.core import Bytes, Graph, InfeasibleError, JudgeError, Plan, StorageId
from tightrope.lower.join import Turn
from tightrope.plan import SMALLEST, KeptPlans, smallest, solve
from tightrope.run.accounts import Accounts
from tightrope.run.arenas import Arenas, trim_idle
from tightrope.run.headroom import Headroom
from tightrope.run.prepared import Prepared, Proof, prepare
from tightrope.run.refusal import Refusal
from tightrope.run.room import Room, cause_of
from tightrope.run.running import Running
from tightrope.run.status import StatusLine

_MOST_KNOWN: Final = 8
"""Plans of one graph that are kept ready to run: loops may hold more at one call than at another."""


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Attributes:
        budget: total bytes, or a function of what the unplanned step needs.
        verify: check the first run of every plan; ``graph`` = also compare with the unplanned graph.
        seed: of the search.
        seconds: of search; None = until the default effort is spent.
        planner: name in the registry.
    """

    budget: Bytes | Callable[[Bytes], Bytes]
    verify: str | None = "first"
    seed: int = 0
    seconds: float | None = None
    planner: str = "auto"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a refusal should know of the future.

    Attributes:
        gradients: bytes of gradients that may stay until the next step.
        state: bytes of optimizer state that may come, where no optimizer is known.
        num_waiting: forwards that hold memory for a backward that did not run.
        held_first: bytes that were held when the model was planned first; None = this is the first time.
    """

    gradients: Bytes = 0
    state: Bytes = 0
    num_waiting: int = 0
    held_first: Bytes | None = None


class _Known(NamedTuple):
    """A plan, the room that it was made for, and what was left free beside it."""

    prepared: Prepared
    room: Room
    beside: Bytes


class Unit:
    """One graph under the budget; state of the runtime, used from one thread at a time.

    Attributes:
        graph: priced.
        storages: (call, storage of its own graph) -> storage, where it joins several calls; else empty.
        headroom: what to leave beside the plan.
        arenas: for its plans; None without a hook.
        prepared: what ran last, or runs next.
        proofs: one per plan that was made, in order.
    """

    def __init__(
        self,
        graph: Graph,
        settings: Settings,
        accounts: Accounts,
        status: StatusLine,
        *,
        headroom: Headroom,
        why: str = "first plan",
        storages: dict[tuple[int, StorageId], StorageId] | None = None,
    ) -> None:
        self.graph, self.settings, self.accounts, self.status = graph, settings, accounts, status
        self.headroom, self.storages = headroom, storages or {}
        self.arenas = Arenas(accounts.allocator) if accounts.allocator is not None else None
        self.prepared: Prepared | None = None
        self.proofs: list[Proof] = []
        self._why = why
        self._cache = KeptPlans(settings.seed)
        self._room: Room | None = None
        self._known: list[_Known] = []
        self._least: Plan | None = None

    @property
    def room(self) -> Room:
        """What was left when it was asked for a plan last."""
        assert self._room is not None
        return self._room

    def begin(
        self,
        turns: tuple[Turn, ...],
        room: Callable[[Bytes], Room],
        expected: Callable[[], Expected],
        *,
        give_up: Callable[[], bool] = lambda: False,
        ready: Callable[[], None] = lambda: None,
        heap: bool = False,
    ) -> Running:
        """Find the plan for the room that is left, and an arena for it.

        Args:
            turns: what the caller is expected to do, one per part.
            room: what is left when so many bytes are held by everything else.
            expected: what a refusal should know.
            give_up: makes room where nothing fits; tells whether it made some.
            ready: called once a plan is known to fit.
            heap: run without planned addresses.

        Raises:
            InfeasibleError: nothing fits.
            torch.OutOfMemoryError: there is no room for the arena after all.
        """
        arena, charge = self.arenas.reclaim() if self.arenas is not None else (None, 0)
        trim_idle()
        try:
            while True:
                try:
                    prepared = self.suit(room(self.accounts.charged() - charge), expected)
                    break
                except InfeasibleError:
                    if not give_up():
                        raise
            ready()
            if self.arenas is not None and not heap:
                arena = self.arenas.fit(arena, prepared.arena)
            elif self.arenas is not None and arena is not None:
                self.arenas.finish(arena, retire=True)
                arena = None
        except BaseException:
            if self.arenas is not None and arena is not None:
                self.arenas.finish(arena)
            raise
        return Running(
            prepared, turns, self.accounts, self.arenas, arena,
            held=self.room.held, storages=self.storages, verify=self.settings.verify,
        )  # fmt: skip

    def suit(self, room: Room, expected: Callable[[], Expected]) -> Prepared:
        """Keep the present plan while it suits; else make one for the room, and ready to run.

        Raises:
            InfeasibleError: nothing fits.
        """
        known = self._best_known(room)
        if known is not None:
            self._room, self.prepared = room, known.prepared
            return known.prepared
        last = self._known[-1] if self._known else None
        said = None if last is None else last.prepared.plan.forecast
        cause = self._why if last is None or said is None else cause_of(last.room, room, last.beside, said)
        with self.status.planning(room.budget, cause):
            self.prepared, beside = self._planned(room, expected, cause)
        self.proofs.append(self.prepared.proof)
        self._room = room
        self._known = [*self._known[1 - _MOST_KNOWN :], _Known(self.prepared, room, beside)]
        return self.prepared

    def _planned(self, room: Room, expected: Callable[[], Expected], cause: str) -> tuple[Prepared, Bytes]:
        """Make a plan for a room, with as much free beside it as there is room for."""
        began = time.perf_counter()
        *generous, least = room.headroom.candidates()
        for beside in generous:
            with suppress(InfeasibleError):
                plan = self._solve(room.available - beside)
                break
        else:
            beside = least
            try:
                plan = self._solve(room.available - least)
            except InfeasibleError as error:
                self.headroom = self.headroom.forget()
                wanted = generous[0] if generous else least
                raise self._refusal(room, least, wanted, expected()).restated(error) from None
        try:
            return prepare(self.graph, plan, self.accounts.allocator, cause=cause, began=began), beside
        except JudgeError as error:
            if not self._cache.forget(self.graph, str(error)):
                raise
            return self._planned(room, expected, cause)

    def _best_known(self, room: Room) -> "_Known | None":
        """The fastest plan that fits, unless a faster one may be found: for a room like this, or none."""
        fitting = [k for k in self._known if room.fits(k.prepared.plan.forecast, room.headroom.needed)]
        best = min(fitting, key=lambda known: known.prepared.plan.forecast.ns, default=None)
        if best is None or best.prepared.plan.forecast.ns == best.prepared.plan.forecast.base_ns:
            return best
        likely = any(room.resembles(k.room, k.beside, k.prepared.plan.forecast) for k in fitting)
        return best if likely else None

    def substitute(self, prepared: Prepared) -> Callable[[], None]:
        """Run something else in place of what is known, until the result is called."""
        before, self._known = self._known, [_Known(prepared, self.room, 0)]

        def restore() -> None:
            self._known = before
            self.prepared = before[-1].prepared if before else None

        return restore

    def check_least(self, room: Room, expected: Expected) -> None:
        """Refuse now what would be refused later: a room in which not even the smallest plan fits.

        Raises:
            InfeasibleError: with a budget that would do.
        """
        least = self.least()
        wanted, needed = room.headroom.candidates()[0], room.headroom.needed
        if not room.fits(least.forecast, needed):
            bound, op = least.certificate.lower_bound, least.certificate.witness
            error = InfeasibleError(
                "later",
                asked=room.budget,
                smallest_found=least.forecast.total,
                lower_bound=bound,
                op=self.graph.ops[op].describe() if op >= 0 else "the caller's own storages",
            )
            raise self._refusal(room, needed, wanted, expected).restated(error)

    def _refusal(self, room: Room, least: Bytes, wanted: Bytes, expected: Expected) -> Refusal:
        grown = 0 if expected.held_first is None else max(room.held - expected.held_first, 0)
        return Refusal(
            room.budget,
            room.budget - room.available - self.graph.persistent,
            least,
            wanted,
            expected.num_waiting,
            expected.gradients,
            expected.state,
            grown,
        )

    def _solve(self, available: Bytes) -> Plan:
        budget = max(available + self.graph.persistent, 1)
        with self.status.search(budget) as report:
            return solve(
                self.graph,
                budget=budget,
                planner=self.settings.planner,
                seconds=self.settings.seconds,
                seed=self.settings.seed,
                progress=report,
                cache=self._cache,
            )

    def least(self) -> Plan:
        """The smallest plan that is found; kept."""
        if self._least is None:
            self._least = self._cache.least(self.graph)
        if self._least is None:
            with self.status.task("looking for the smallest plan", 1):
                self._least = smallest(self.graph, seed=self.settings.seed)
            self._cache.store(self.graph, self._least, planner=SMALLEST)
        return self._least

    def close(self) -> None:
        """Give everything back that no step is using."""
        if self.arenas is not None:
            self.arenas.close()
