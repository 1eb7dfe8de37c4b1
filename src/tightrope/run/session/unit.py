"""What is planned as one: a captured graph, several calls together, or what is left of one.

A unit has a graph, and for the room that is left a plan, made ready to run. The plan is kept while it
suits, and known plans are remembered; every new one is judged, and checked in its first run.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch

from tightrope.capture._inductor import compiler_missing
from tightrope.core import Bytes, Forecast, Graph, InfeasibleError, JudgeError, Plan, StorageId
from tightrope.fuse.choose import Chosen, compile_stretches, fused
from tightrope.fuse.rounds import fused_rounds
from tightrope.lower.join import Turn
from tightrope.lower.remainder import staying
from tightrope.plan import SMALLEST, KeptPlans, Progress, smallest, solve
from tightrope.plan.options import ENOUGH
from tightrope.plan.resize import resized, same_ops
from tightrope.price.store import PriceStore
from tightrope.run.base.status import StatusLine
from tightrope.run.execute.contest import PAGED, Contest
from tightrope.run.execute.paging import Paging
from tightrope.run.execute.prepared import Prepared, Proof, prepare
from tightrope.run.execute.running import Running
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.arenas import Arenas, trim_idle
from tightrope.run.ledger.headroom import Headroom
from tightrope.run.ledger.refusal import Expected, Refusal, itemised, with_loop
from tightrope.run.ledger.room import Room, cause_of
from tightrope.run.session.captured import Rewritten

LENT: Final = "the plan of its bucket, for smaller sizes"
"""Why an executable was made that needed no plan of its own."""
_MOST_KNOWN: Final = 8
"""Plans of one graph that are kept ready to run: loops may hold more at one call than at another."""


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Attributes:
        budget: total bytes, or a function of what the unplanned step needs.
        verify: check the first run of every plan; ``graph`` = also compare with the unplanned graph;
            ``eager`` and ``always`` = with the model as it is, by `tightrope.run.verify.eager`.
        seed: of the search.
        seconds: of search; None = until the default effort is spent.
        planner: name in the registry.
        rewrite: chooses a form, see `tightrope.run.session.equal_forms`; None = calls stay as captured.
        fuse: whether stretches of a plan may run as compiled functions, within a tolerance.
        writes: whether ops may write over inputs that nothing needs any more.
        chunk: chunks of rows that a loss may be split into where nothing fits without; 0 = none, None = any.
        pages: where storages may be paged to; None = nowhere.
        fallback: what a model that is not captured runs under; see `tightrope.compile`.
    """

    budget: Bytes | Callable[[Bytes], Bytes]
    verify: str | None = "first"
    seed: int = 0
    seconds: float | None = None
    planner: str = "auto"
    fuse: bool = False
    rewrite: Callable[..., Any] | None = None
    writes: bool = True
    chunk: int | None = None
    pages: Paging | None = None
    fallback: str = "auto"


class _Known(NamedTuple):
    """A plan, its room, what was left free beside it, and its contest with another form of the step."""

    prepared: Prepared
    room: Room
    beside: Bytes
    contest: Contest | None = None


@dataclass(frozen=True)
class Lender:
    """The unit whose plans another one uses.

    Attributes:
        unit: of the largest sizes of a bucket.
        strict: refuse where no plan of it fits; else plan for the smaller sizes alone.
    """

    unit: "Unit"
    strict: bool


class Unit:
    """One graph under the budget; state of the runtime, used from one thread at a time.

    Attributes:
        graph: priced.
        storages: (call, storage of its own graph) -> storage, where it joins several calls; else empty.
        arenas: for its plans; None without a hook.
        prepared: what ran last, or runs next.
        proofs: one per plan that was made, in order.
        rewritten: what its graph stands for; None = it is as captured.
        lender: whose plans it uses; None = its own.
        nearest: finds a unit for other sizes, from whose plan its search begins.
        lends: whether it stands for a bucket; then a kept plan for almost the same budget does.
    """

    lends: bool = False
    rewritten: Rewritten | None = None
    lender: Lender | None = None
    nearest: "Callable[[], Unit | None]" = staticmethod(lambda: None)

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
        self._headroom, self.storages = headroom, storages or {}
        self.arenas = Arenas(accounts.allocator) if accounts.allocator is not None else None
        self.prepared: Prepared | None = None
        self.proofs: list[Proof] = []
        self._why = why
        self._cache = KeptPlans(settings.seed)
        self._room: Room | None = None
        self._known: list[_Known] = []
        self._least: Plan | None = None
        self._missed: InfeasibleError | None = None
        self._lent: list[tuple[Prepared, Prepared]] = []

    @property
    def headroom(self) -> Headroom:
        """What to leave beside the plan; one for all sizes of a bucket."""
        return self._headroom if self.lender is None else self.lender.unit.headroom

    @headroom.setter
    def headroom(self, seen: Headroom) -> None:
        if self.lender is None:
            self._headroom = seen
        else:
            self.lender.unit.headroom = seen

    @property
    def room(self) -> Room:
        """What was left when it was asked for a plan last."""
        assert self._room is not None
        return self._room

    @property
    def forecast(self) -> Forecast:
        """Of what ran last, or runs next."""
        assert self.prepared is not None
        return self.prepared.plan.forecast

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
        return self.starting(prepared, turns, arena)()

    def starting(
        self, prepared: Prepared, turns: tuple[Turn, ...], arena: int | None
    ) -> Callable[[], Running]:
        """Make what begins an execution in a leased arena."""
        return functools.partial(
            Running, prepared, turns, self.accounts, self.arenas, arena,
            held=self.room.held, storages=self.storages, verify=self.settings.verify,
            source=None if self.rewritten is None else self.rewritten.source,
        )  # fmt: skip

    def suit(self, room: Room, expected: Callable[[], Expected]) -> Prepared:
        """Keep the present plan while it suits; else make one for the room, and ready to run.

        Raises:
            InfeasibleError: nothing fits.
        """
        if not room.fits_update:
            raise self.refused(room, expected())
        lender = None if self._known else self.lender
        if lender is not None and (lent := self._borrow(lender, room, expected)) is not None:
            self._room, self.prepared = room, lent
            return lent
        known = self._best_known(room)
        if known is not None:
            self._room, self.prepared = room, known.prepared
            if known.contest is not None:
                self.prepared = known.contest.next(
                    lambda it: room.fits(it.plan.forecast, room.headroom.needed)
                )
            return self.prepared
        cause = self._why
        if self._known:
            last = self._known[-1]
            said = last.prepared.plan.forecast
            cause = cause_of(last.room, room, last.beside, said, self._aim(room))
        with self.status.planning(room.budget, cause):
            try:
                found = self._planned(room, expected, cause)
            except JudgeError as error:
                if not self._cache.forget(self.graph, str(error)):
                    raise
                found = self._planned(room, expected, cause)
        self.prepared = found.prepared
        self.proofs.append(self.prepared.proof)
        self._room = room
        self._known = [*self._known[1 - _MOST_KNOWN :], found]
        return self.prepared

    def _borrow(self, lender: Lender, room: Room, expected: Callable[[], Expected]) -> Prepared | None:
        """Use the plan of the largest sizes of the bucket; None = plan for these sizes alone from now on.

        Raises:
            InfeasibleError: it does not fit, and the user asked for a plan that fits all sizes.
        """
        larger = _given(lender.unit.graph) - _given(self.graph)
        try:
            most = lender.unit.suit(replace(room, held=room.held + larger), expected)
        except InfeasibleError:
            if lender.strict:
                raise
            self.lender, self._why = None, "the largest sizes of its bucket do not fit"
            return None
        for theirs, mine in self._lent:
            if theirs is most:
                return mine
        began = time.perf_counter()
        plan = resized(self.graph, most.plan, lender.unit.graph)
        if plan is None:
            self.lender, self._why = (
                None,
                "its kernels allocate more than for the largest sizes of its bucket",
            )
            self.nearest = lambda: lender.unit
            return None
        found = self._prepared(plan, LENT, began)
        self.proofs.append(found.proof)
        self._lent = [*self._lent[1 - _MOST_KNOWN :], (most, found)]
        return found

    @property
    def settled(self) -> bool:
        """Whether it is known of every plan in use in which form it runs in the end."""
        return all(known.contest is None or known.contest.over for known in self._known)

    @property
    def keeps(self) -> bool:
        """Whether the same room always gets the same plan."""
        return self.arenas is not None and self.lender is None and self.settled

    def _planned(self, room: Room, expected: Callable[[], Expected], cause: str) -> _Known:
        """Make a plan for a room, with as much free beside it as there is room for."""
        began = time.perf_counter()
        for beside in room.headroom.candidates():
            if self._may_fit(room, beside):
                try:
                    plan = self._solve(room.available - beside)
                except InfeasibleError as error:
                    self._missed = error.with_traceback(None)
                else:
                    if not self.settings.fuse:
                        made = self._prepared(plan, cause, began)
                        return _Known(made, room, beside, self._without_pages(made))
                    fused, why = self._fused(plan, room.available - beside + self.graph.persistent)
                    made = self._prepared(fused, cause, began)
                    made.proof.lost = why and f"not fused: {why}"
                    other = functools.partial(self._other, plan, "the fused plan")
                    return _Known(made, room, beside, Contest(made, other) if fused.stretches else None)
        assert self._missed is not None
        raise self._refusal(room, expected()).restated(self._missed) from None

    def _prepared(self, plan: Plan, cause: str, began: float) -> Prepared:
        made = prepare(
            self.graph, plan, self.accounts.allocator, cause=cause, began=began, paging=self.settings.pages
        )
        if self.rewritten is not None:
            made.proof.num_chunks = self.rewritten.num_chunks
            made.proof.channels_last = self.rewritten.channels_last
            made.proof.num_products = self.rewritten.num_products
        return made

    def _without_pages(self, made: Prepared) -> Contest | None:
        """Compare what pages with what fits without pages; None where it does not page, or nothing fits."""
        pages = self.settings.pages
        if made.lease is None or pages is None or not pages.contest:
            return None
        plan = self._cache.best(self.graph, budget=made.plan.budget)  # searched before the one that pages
        if plan is None:
            return None
        return Contest(made, functools.partial(self._other, plan, "the plan that pages"), PAGED)

    def _other(self, plan: Plan, first: str) -> Prepared:
        made = self._prepared(plan, f"to compare with {first}", time.perf_counter())
        self.proofs.append(made.proof)
        return made

    def _may_fit(self, room: Room, beside: Bytes) -> bool:
        """Tell whether a plan with so many bytes free beside it is not known to miss."""
        missed = None if self._missed is None else self._missed.smallest_found
        return missed is None or missed - self.graph.persistent <= room.available - beside

    def _aim(self, room: Room) -> Bytes:
        """What to leave free beside a plan: the most that is wanted and not known to miss."""
        every = room.headroom.candidates()
        return next((beside for beside in every if self._may_fit(room, beside)), every[-1])

    def _best_known(self, room: Room) -> "_Known | None":
        """The fastest plan that fits, unless a faster one may be found: for a room like this, or none."""
        aim = self._aim(room)
        beside = aim if room.headroom.seen else room.headroom.needed
        fitting = [k for k in self._known if room.fits(k.prepared.plan.forecast, beside)]
        best = min(fitting, key=lambda known: known.prepared.plan.forecast.ns, default=None)
        if best is None or best.prepared.plan.forecast.ns == best.prepared.plan.forecast.base_ns:
            return best
        likely = any(room.resembles(k.room, k.beside, k.prepared.plan.forecast, aim) for k in fitting)
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
        if not room.fits(self.least().forecast, room.headroom.needed):
            raise self.refused(room, expected)

    def refused(self, room: Room, expected: Expected) -> InfeasibleError:
        """Say which budget would do."""
        least = self.least()
        bound, op = least.certificate.lower_bound, least.certificate.witness
        error = InfeasibleError(
            "later",
            asked=room.budget,
            smallest_found=least.forecast.total,
            lower_bound=bound,
            op=self.graph.ops[op].describe() if op >= 0 else "the caller's own storages",
        )
        return self._refusal(room, expected).restated(error)

    def _refusal(self, room: Room, expected: Expected) -> Refusal:
        first, headroom = expected.held_first is None, room.headroom
        ledger = replace(
            with_loop(
                itemised(replace(room, update=expected.update).ledger(), self.graph),
                loss=max(headroom.held, headroom.needed) if headroom.seen else headroom.wanted,
                guessed=not headroom.seen,
                between=headroom.peak and headroom.peak + headroom.outputs + staying(self.graph),
                outputs=headroom.outputs if first else 0,
                state=expected.assumed,
                gradients=expected.gradients,
                summed=expected.summed,
            ),
            least=expected.least,
            dropping=expected.dropping,
        )
        return Refusal(
            ledger,
            self.graph.persistent,
            num_waiting=expected.num_waiting,
            later=expected.held_first is not None,
            grown=0 if expected.held_first is None else max(room.held - expected.held_first, 0),
            in_pieces=expected.in_pieces,
            returns=len(self.graph.parts) > 1,
            unplanned=expected.unplanned,
            earlier=expected.earlier,
            ahead=expected.ahead,
            evicted=expected.evicted,
            at_once=expected.at_once,
        )

    def _solve(self, available: Bytes) -> Plan:
        most = self.rewritten.most if self.rewritten is not None else 0
        budget = max(min(available + self.graph.persistent, most or 2**60), 1)
        if self.lends and self.settings.seconds is None:
            kept = self._cache.close(self.graph, budget=budget, planner=self.settings.planner)
            if kept is not None:
                return kept
        with self.status.search(budget) as report:
            return self._search(self.graph, budget, report)

    def _search(self, graph: Graph, budget: Bytes, report: Callable[[Progress], None] | None = None) -> Plan:
        alone = functools.partial(
            solve, graph, budget=budget, planner=self.settings.planner, seconds=self.settings.seconds,
            seed=self.settings.seed, progress=report, cache=self._cache, start=self._start(),
            enough=ENOUGH if self.settings.seconds is None else 0.0,
        )  # fmt: skip
        pages = self.settings.pages
        return alone() if pages is None else pages.solve(graph, budget, alone, progress=report)

    def _start(self) -> Plan | None:
        """The plan for other sizes from which to search."""
        near = self.nearest()
        if near is None or near.prepared is None or not same_ops(near.graph, self.graph):
            return None
        return near.prepared.plan

    def _fused(self, plan: Plan, budget: Bytes) -> Chosen:
        """Let stretches of a plan run fused where that is faster and fits; else say why none does."""
        if missing := compiler_missing():
            return Chosen(plan, missing)
        store = PriceStore(self.graph.environment)
        threads = torch.get_num_threads()
        with self.status.task("compiling fused stretches", 1) as tick:
            fuse = functools.partial(
                fused, self.graph, budget=budget, threads=threads, allocator=self.accounts.allocator,
                store=store, tick=tick,
            )  # fmt: skip
            while True:  # every round but the last finds a stretch that is refused from then on
                chosen = fused_rounds(self.graph, plan, budget=budget, search=self._search, fuse=fuse)
                if compile_stretches(self.graph, chosen.plan, threads=threads, tick=tick):
                    return chosen

    def least(self) -> Plan:
        """The smallest plan that is found; kept."""
        if self._least is None:
            self._least = self._cache.least(self.graph)
        if self._least is None:
            with self.status.task("looking for the smallest plan", 1):
                self._least = smallest(self.graph, seed=self.settings.seed)
            self._cache.store(self.graph, self._least, planner=SMALLEST)
        pages = self.settings.pages
        return self._least if pages is None else pages.smallest(self.graph, self._least)

    def close(self) -> None:
        """Give everything back that no step is using."""
        if self.arenas is not None:
            self.arenas.close()


def _given(graph: Graph) -> Bytes:
    """Bytes of what the caller hands over and holds."""
    return graph.persistent - graph.hidden
