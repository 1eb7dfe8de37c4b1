"""What a model's training will need of the budget: now, in the first update, and until the next step.

The budget is one number for the whole loop, so a plan has room only where all of that has. An optimizer that
is met for the first time in its own ``step()`` is looked at right before its first update.
"""

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tightrope.core import Bytes, Graph, InfeasibleError
from tightrope.plan import solve
from tightrope.run.base.caller_text import forwards_ahead
from tightrope.run.evict.level_e import block_is_open
from tightrope.run.execute.running import Pending
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.arenas import trim_idle
from tightrope.run.ledger.headroom import ByLoop
from tightrope.run.ledger.optimizer import Foresight
from tightrope.run.ledger.refusal import Expected, Refusal, is_for_eviction, itemised, with_loop
from tightrope.run.ledger.room import CAPTURE_SLACK, RESERVE, Room
from tightrope.run.session.captured import Captured
from tightrope.run.session.rehearsal import rehearsed
from tightrope.run.session.unit import Settings, Unit
from tightrope.run.session.units import Units

_ALL: "weakref.WeakSet[Prospects]" = weakref.WeakSet()
_EVICTED, _MANY = 16, 3
"""One part in so many of a step is left to eviction in a budget named for it, if that needs far less."""


class Prospects:
    """The budget of one model and what will be needed of it.

    Attributes:
        budget: total bytes; one in percent rises with what the unplanned step is seen to be.
        asked: the percentage that the user gave, or the empty string.
        whole: bytes that 100 % stands for; 0 = the budget is in bytes, or no graph was seen yet.
        raised: called when a budget in percent may have risen.
        in_pieces: whether graphs may follow that were not seen yet.
        left_behind: bytes that the first capture took and that are counted as held.
        unplanned: what the step takes without a plan, as far as it was seen.
        observed: most bytes charged between a backward and the end of the update behind it.
        evicts: tells whether level E may run what no plan fits for.
        by_values: whether values decide what a call does, as far as it was rehearsed.
    """

    raised: Callable[[], None] = staticmethod(lambda: None)
    evicts: Callable[[], bool] = staticmethod(lambda: False)
    in_pieces: bool = False
    by_values: bool = False

    def __init__(self, settings: Settings, accounts: Accounts, future: Foresight) -> None:
        self._share = settings.budget
        self.asked = "" if isinstance(settings.budget, int) else str(settings.budget)
        self.whole: Bytes = 0
        self.accounts, self.future = accounts, future
        self.budget: Bytes = settings.budget if isinstance(settings.budget, int) else 0
        self.left_behind: Bytes = 0
        self.unplanned: Bytes = 0
        self.observed: Bytes = 0
        self._held: Bytes = 0
        self._held_first: Bytes | None = None
        self._last: tuple[Unit, Room] | None = None
        _watch_updates()
        _ALL.add(self)

    def close(self) -> None:
        """Look at no update any more: nothing is planned from now on."""
        _ALL.discard(self)

    def raise_share(self, calls: Sequence[Captured], *, waiting: bool) -> None:
        """Note what the unplanned step takes, and raise a budget in percent to its share of that.

        Args:
            calls: graphs of the forwards that wait for their backward at once, the next one first.
            waiting: whether some of them ran already, so that what is held has them in it.
        """
        if not waiting:
            held = self.accounts.charged_at_mark() + self.accounts.hidden + calls[0].headroom.tangents
            self._held = max(self._held, held, calls[0].graph.persistent)
            if not callable(self._share):
                return  # nobody needs more, and while torch traces, parts of a divided model cannot be read
        state, beside = self.future.update()
        most = max(sum(call.unplanned for call in calls), self.future.gradients + beside)
        self.unplanned = whole = Room(0, self._held, state).ledger().needed(most)
        self.accounts.note_likely(self, ByLoop(whole, whole))
        if not callable(self._share):
            return
        if (budget := self._share(whole)) > self.budget:
            self.budget, self.whole = budget, whole
        self.raised()

    def grown(self, call: Captured) -> bool:
        """Raise a budget in percent to its share of a step that begins with what is held now.

        Args:
            call: the forward that does not fit.

        Returns:
            Whether it rose.
        """
        if not callable(self._share) or self._last is None:
            return False
        before, (_, room) = self.budget, self._last
        self._held = max(self._held, room.held + room.hidden + call.headroom.tangents)
        self.raise_share([call], waiting=True)
        return self.budget > before

    def undoing(self) -> Callable[[], None]:
        """Return what lowers a budget in percent to what it is now."""
        before = self.budget, self.whole, self._held

        def undo() -> None:
            self.budget, self.whole, self._held = before

        return undo

    def begin(self, *, first: bool) -> None:
        """Note what is held when a plan is asked for; ``first`` = no forward ran yet."""
        self.accounts.catch_up()
        if self._held_first is None:
            self._held_first = self.accounts.charged()
        if first:
            left = self.accounts.charged() - self.accounts.charged_at_mark()
            self.left_behind = max(self.left_behind, min(left, CAPTURE_SLACK))

    def room(self, unit: Unit, held: Bytes, *, updates: bool = False) -> Room:
        """What is left for a unit when so many bytes are held by everything else.

        Args:
            unit: asks for it.
            held: see there.
            updates: whether an update of the optimizer may come with nothing else pending.
        """
        state, beside = self.future.update()
        known = self.future.known and not self.future.complete
        update = self.future.gradients + beside if updates and known else 0
        hidden = self.accounts.hidden + self.accounts.slack
        room = Room(
            self.budget, held, state, update, unit.headroom, self.left_behind, hidden, self.asked, self.whole
        )
        if updates:
            self._last = unit, room
        return room

    def expected(
        self,
        begins: Captured | None = None,
        *,
        num_waiting: int = 0,
        stepped: bool = False,
        least: Bytes = 0,
    ) -> Expected:
        """What a refusal should know.

        Args:
            begins: the forward that begins a step. Of the first step of all, the caller's text tells how many
                come before a backward.
            num_waiting: forwards that wait for their backward.
            stepped: whether a training step was completed: what the loop keeps is there then.
            least: a budget that is needed anyway.
        """
        update = self.future.update()  # it looks for optimizers
        assume = not stepped and not self.future.known
        update = self.future.assumed() if assume else update
        more = self.in_pieces and not stepped
        expected = Expected(
            0 if stepped else self.future.staying,
            self.future.summed if num_waiting else 0,
            update.state if assume else 0,
            self.future.gradients + update.beside,
            num_waiting,
            self._held_first if stepped else None,
            max(least, self.accounts.enough.keeping if more else 0),
            max(least, self.accounts.enough.dropping if more else 0),
            more,
            self.unplanned if num_waiting else 0,
        )
        if begins is None or len(begins.graph.parts) == 1:
            return expected
        if stepped:
            least = self.future.gradients + begins.evicted
            return replace(expected, evicted=least if self.evicts() else 0)
        count, where = forwards_ahead()
        earlier = (count - 1) * begins.waiting
        if self.evicts():
            extra, own = self.future.largest, begins.evicted
            expected = replace(
                expected, evicted=begins.as_given + extra + earlier, at_once=own + own // 2 + extra
            )
        if count == 1:
            return expected
        said = f"{where} calls the model at least {count} times before a backward."
        return replace(expected, summed=self.future.largest, earlier=earlier, ahead=said)

    def look_ahead(
        self,
        units: Units,
        waiting: Collection[Pending],
        held: Bytes,
        freed: Callable[[], Bytes],
        expected: Callable[[], Expected],
    ) -> None:
        """Refuse a forward now if the backward of an earlier one will not fit, whatever that drops.

        Args:
            units: of the model.
            waiting: its forwards whose backward has yet to come.
            held: bytes that everything but the forward holds.
            freed: tells what all waiting forwards could drop.
            expected: tells what a refusal should know.

        Raises:
            InfeasibleError: with a budget that would do.
        """
        parked = [None if one.dropped else one.running.prepared.left for one in waiting]
        summed = self.future.left_after_one(parked)
        for pending in waiting:
            if pending.kept is None:  # its backward is under way
                continue
            one = units.captured[pending.turn.graph]
            resumed = 0 if pending.dropped else pending.running.prepared.arena
            left = Room(self.budget, held + summed, hidden=self.accounts.hidden).available
            if pending.dropped or left < resumed + one.headroom.wanted:
                gone, _ = pending.droppable(one.graph)
                unit = units.rest(pending.turn.graph, frozenset(pending.live()) - gone)
                room = replace(self.room(unit, held + summed - freed()), headroom=one.headroom)
                unit.check_least(room, replace(expected(), summed=0))

    def look_further(self, unit: Unit, first: Captured, held: Bytes, *, several: bool) -> None:
        """Refuse the first of several forwards where the gradients of all will not fit, and level E can run.

        Args:
            unit: of one forward and its backward, which has a plan.
            first: the forward.
            held: bytes that everything else holds.
            several: whether others came before a backward the last time; else the caller's text tells.
        """
        if not self.evicts():
            return
        expected = self.expected(first, stepped=several)
        if not (several or expected.earlier):
            return
        room = self.room(unit, held + self.future.summed + first.staying)
        fits = partial(room.fits, beside=unit.headroom.needed)
        if not (fits(unit.forecast) or fits(unit.least().forecast)):
            least = replace(expected, evicted=self.future.gradients + first.evicted, at_once=0)
            refused = unit.refused(self.room(unit, held), least)
            if is_for_eviction(refused):
                raise refused

    def rehearse(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Learn from a call on shapes alone which budget is enough where no step is planned."""
        taken = rehearsed(model, args, kwargs)
        if taken is not None:
            self.by_values = taken.by_values
            expected, held = self.expected(), self.accounts.charged()
            state = 0 if expected.assumed else self.future.update().state
            room = Room(self.budget, held, state, expected.update, hidden=self.accounts.hidden)

            def named(room: Room, gradients: Bytes, forward: Bytes, step: Bytes, *, spare: bool) -> ByLoop:
                # old gradients are gone before the backward, or new ones are added to them one by one
                rows = partial(with_loop, room.ledger(), state=expected.assumed, spare=spare)
                loop, one = rows(gradients=gradients), rows(gradients=min(gradients, self.future.largest))
                keeping = max(loop.needed(forward), one.needed(step))
                return ByLoop(keeping, loop.needed(step, keeps_gradients=False))

            whole = named(room, expected.gradients, taken.enough_forward, taken.enough, spare=True)
            self.accounts.note_enough(self, whole)
            evicting = self.future.gradients + taken.evicting if expected.gradients else 0
            kept = taken.seen - taken.seen // _EVICTED * (taken.seen > _MANY * taken.evicting)
            likely, bare = max(kept, min(evicting, taken.seen)), replace(room, left_behind=RESERVE)
            plain = named(bare, self.future.gradients, taken.forward, likely, spare=False)
            self.accounts.note_likely(self, plain)

    def unmeasured(self, graph: Graph, error: InfeasibleError, expected: Expected) -> InfeasibleError:
        """Name a budget for a graph of which an op does not fit alone: that of its given order."""
        room = Room(
            self.budget,
            self.accounts.charged(),
            self.future.update().state,
            asked=self.asked,
            whole=self.whole,
        )
        loop = with_loop(
            itemised(room.ledger(), graph),
            loss=error.lower_bound - graph.persistent,
            state=expected.assumed,
            gradients=expected.gradients,
        )
        refusal = Refusal(loop, graph.persistent, in_pieces=expected.in_pieces, returns=len(graph.parts) > 1)
        given = solve(graph, budget=2**60, planner="given").forecast.total
        found = InfeasibleError(
            str(error), asked=self.budget, smallest_found=given, lower_bound=error.lower_bound, op=error.op
        )
        return refusal.restated(found)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse the first update of an optimizer where it, or the step after it, will not fit.

        Raises:
            InfeasibleError: with a budget that would do.
        """
        if self.future.complete or not self.future.holds(optimizer) or block_is_open():
            return
        self.future.begin(optimizer)
        if self._last is None:
            return
        foreseen = self.future.known
        self.future.note(optimizer)
        state, beside = self.future.update()
        trim_idle()
        now = Room(max(self.accounts.budget, self.budget), self.accounts.charged(), state, beside)
        now = replace(now, hidden=self.accounts.hidden, left_behind=RESERVE)
        unit, room = self._last
        room = replace(room, foreseen=state, update=self.future.gradients + beside)
        if not now.fits_update:
            least = with_loop(replace(now, left_behind=0).ledger()).needed(0)
            raise unit.refused(room, self.expected(least=least))
        if not (foreseen or room.fits(unit.forecast, room.headroom.needed)):
            unit.check_least(room, self.expected())

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what was charged while a known optimizer updated."""
        self.future.end(optimizer)
        if self.accounts.allocator is not None and self.future.found(optimizer):
            charged = self.accounts.allocator.stats().charged_peak + self.accounts.older
            self.observed = max(self.observed, charged)


@cache
def _watch_updates() -> None:
    """Look at every optimizer right before it updates; once in a process."""
    register_optimizer_step_pre_hook(_before_update)
    register_optimizer_step_post_hook(_after_update)


def _after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for prospects in list(_ALL):
        prospects.after_update(optimizer)


def _before_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for prospects in list(_ALL):
        prospects.before_update(optimizer)
