"""The calls of a model, turn by turn: which unit each belongs to, and what was learned from them.

Idea        The first time, each call is planned by itself. Once a pattern of turns was seen, it is
            expected again and planned as one graph with control at the caller in between: a siamese
            net, micro-batches and the pieces of a model with graph breaks are all such patterns.
Guarantee   Parts of different calls share nothing, so a caller that does something else only loses the
            plan: the backward of a forward that already ran is then planned from what is still there.
            So it is too where another forward needs the room that a pending one holds.
Gaps        Loops that choose at random among patterns that begin alike are planned call by call at
            every turn that was not expected.

    forward 0     caller     forward 1     caller     backward 1    backward 0      one unit
    [ part 0 ]  [ a loss? ]  [ part 1 ]  [ a loss? ]  [ part 2 ]    [ part 3 ]
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from tightrope.capture import _torch
from tightrope.capture.announce import GradientGroups
from tightrope.capture.program import Arrived, Program
from tightrope.core import Bytes, InfeasibleError, JudgeError, TightropeError
from tightrope.lower.join import Turn
from tightrope.run.base.status import StatusLine
from tightrope.run.execute.running import Pending, Running
from tightrope.run.ledger.accounts import Accounts, Observation
from tightrope.run.ledger.caller import CallerBytes
from tightrope.run.ledger.headroom import CallerSoFar, Headroom
from tightrope.run.ledger.optimizer import Foresight
from tightrope.run.ledger.refusal import Expected
from tightrope.run.session.captured import Captured, Rewritten
from tightrope.run.session.forms import Forms
from tightrope.run.session.needs import Prospects
from tightrope.run.session.patterns import Pattern, Patterns, ended, single, standing_for
from tightrope.run.session.steady import Steady
from tightrope.run.session.unit import Settings, Unit
from tightrope.run.session.units import Units

_MOST_OPS: Final = 6_000
"""Patterns of more ops than this are planned call by call."""
_ALL: "weakref.WeakSet[Calls]" = weakref.WeakSet()


class Calls:
    """The captured graphs of one model, and the turns of its training steps.

    Attributes:
        captured: graphs in the order of capture, each form by itself.
        forms: of the captured graphs, by the outputs that are read.
        recent: executions of the last unit, or the last inference; what the report describes.
        units: what is planned as one.
        note: why planned addresses are off, or the empty string.
        observed_charged: largest number of bytes charged in any step.
        num_steps: patterns that were completed.
        num_divergences: allocations that did not go as planned, since the start.
        overlapped: graphs that were called again before their backward.
        when_fits: called in every forward once its plan is known to fit.
        prospects: the budget, and what will be needed of it.
        patterns: what follows what.
        waiting: forwards whose backward has yet to come.
        steady: what the last forwards ran.
        shares_steps: whether a model at level E was called between a forward and its backward.
    """

    shares_steps: bool = False
    when_fits: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, settings: Settings, accounts: Accounts, status: StatusLine, future: Foresight) -> None:
        self.settings, self.accounts, self.status = settings, accounts, status
        self.prospects = Prospects(settings, accounts, future)
        self.recent: list[Running] = []
        self.units = Units(settings, accounts, status)
        self.captured = self.units.captured
        self.forms = Forms(self.units, self.add)
        self.note = ""
        self.observed_charged: Bytes = 0
        self.num_steps = self.num_forwards = self.num_divergences = 0
        self.overlapped: set[int] = set()
        self.patterns = Patterns()
        self.waiting: weakref.WeakSet[Pending] = weakref.WeakSet()
        self._running: Running | None = None
        self._done: Pattern = ()
        self._num_calls = 0
        self._whole = True
        self._gaps: CallerBytes | None = None
        self.steady = Steady(accounts, settings.verify)
        _ALL.add(self)

    @property
    def budget(self) -> Bytes:
        """Total bytes; 0 = a share that is not known yet."""
        return self.prospects.budget

    def add(
        self,
        program: Program,
        real: Sequence[Any],
        why: str = "",
        *,
        finish: Callable[[Program], Program] = lambda program: program,
        rewritten: Rewritten | None = None,
    ) -> int:
        """Measure a captured graph and return its number.

        Args:
            program: as captured.
            real: what it is given.
            why: cause of its first plan; default: the graph is new.
            finish: completes the priced program.
            rewritten: what it stands for; None = it is as captured.
        """
        self.accounts.note_tensors(real)
        self.accounts.note_tensors(tensor.grad for tensor in real if isinstance(tensor, torch.nn.Parameter))
        try:
            how = {"writes": self.settings.writes, "check": self.settings.pages is not None}
            one = Captured.of(program, real, self.accounts.allocator, self.status, finish, **how)
        except InfeasibleError as error:  # an op does not fit alone
            whole = finish(program).graph
            raise self.prospects.unmeasured(whole, error, self._expected_need()) from None
        one.why, one.rewritten = why, rewritten
        self.captured.append(one)
        self.accounts.hold_back(self, one.graph.hidden, later=True)
        self.prospects.raise_share([one], waiting=False)
        return len(self.captured) - 1

    @staticmethod
    def under_way() -> "list[Calls]":
        """List those of all models that wait for a backward."""
        return [calls for calls in _ALL if calls.waiting]

    def unit(self, pattern: Pattern) -> Unit:
        """Find or make the unit of a pattern."""
        return self.units.of(pattern, self.patterns.dropped(pattern))

    def last_unit(self, number: int) -> Unit | None:
        """The unit in which a graph, in its present form, runs alone, or with its own backward."""
        return self.units.last(self.forms.expected(number))

    def _begin(
        self, unit: Unit, turns: tuple[Turn, ...], *, but: Pending | None = None, trains: bool = True
    ) -> Running:
        self.prospects.begin(first=not self.num_forwards)
        return unit.begin(
            turns,
            lambda held: self.prospects.room(unit, held, updates=trains and not self.waiting),
            partial(self._expected_need, turns[0].graph, but),
            give_up=lambda: self._give_up(but) or self.prospects.grown(self.captured[turns[0].graph]),
            ready=self.when_fits,
            heap=bool(self.note),
        )

    def _expected_need(self, number: int | None = None, but: Pending | None = None) -> Expected:
        begins = None if number is None or self.waiting else self.captured[number]
        num_others = len(self.waiting) - (but in self.waiting)
        return self.prospects.expected(begins, num_waiting=num_others, stepped=self.num_steps > 0)

    def _give_up(self, but: Pending | None, *, everywhere: bool = True) -> bool:
        """Let pending forwards, then those of other models, drop what can be made again; tell if one did."""
        others = sorted((one for one in self.waiting if one is not but), key=lambda pending: pending.call)
        if sum(pending.drop(self.captured[pending.turn.graph].graph) for pending in others):
            return True
        beside = [calls for calls in _ALL if calls is not self] if everywhere else []
        return sum(calls._give_up(None, everywhere=False) for calls in beside) > 0

    # forward

    def forward(self, number: int, args: list[Any]) -> list[Any]:
        """Run a forward; the last result is the token that carries what is kept."""
        with self.accounts.turn:
            first, before = number, 0
            if self.waiting:
                before = sum(pending.first == number for pending in self.waiting)
                self.overlapped |= {one.turn.graph for one in self.waiting if one.first == number}
            alone = self.forms.following.get((first, 0), first)
            number = self.forms.expected(first, before) if before else alone
            one = self.captured[number]
            self.accounts.open_step(None)
            self.accounts.note_tensors(self.steady.unseen(one, args) if self.steady.left else args)
            if self.waiting and sum(self._lacked(p) for p in self.waiting if not p.num_backwards):
                _torch.run_tiny_backward()  # autograd holds what a failed backward left until the next one
            if self._gaps is not None:
                self._gaps.enter()
            if one.stale and not self.waiting:
                self._measure_again(one, args)
            running, turn = self._next_forward(number)
            given = [*args, *one.program.constants]
            args.clear()
            inputs, part = list(given), running.position
            outputs, kept = self._run(running, partial(running.run, [], given))
            call = self._num_calls
            self.num_forwards, self._num_calls = self.num_forwards + 1, call + 1
            self._done = (*self._done, turn if turn.call == call else replace(turn, call=call))
            pending = Pending(running, turn, call, part, kept, inputs)
            pending.calls, pending.done = self, self.end
            pending.first, pending.before = first, before
            running.open.add(pending)
            self.waiting.add(pending)
            self.accounts.watch_caller(_relieve, _under_way)
            return [*outputs, pending.token()]

    def _lacked(self, pending: Pending) -> bool:
        """Learn from a forward whose backward never came what the code after it lacked."""
        missing = self._gaps.refused() if self._gaps is not None else 0
        if missing and len(pending.running.turns) > 1:
            unit = self.unit(pending.running.turns)
            self._learn(unit, unit.headroom.observe_oom(missing))
        return bool(missing)

    def _learn(self, unit: Unit, headroom: Headroom) -> None:
        """Leave so much for the caller's code from now on."""
        if headroom != unit.headroom:
            unit.headroom = headroom
            self.steady.drop()

    def _measure_again(self, one: Captured, args: Sequence[Any]) -> None:
        """Price a graph anew after a divergence; the second time, give planned addresses up."""
        if one.measure_again(args, self.accounts.allocator, self.status):
            self.accounts.hold_back(self, one.graph.hidden)
            return
        self.note = (
            f"allocations differed from the plan again ({self.num_divergences} times by now): "
            "the step runs from the heap under the same limit"
        )

    def _next_forward(self, number: int) -> tuple[Running, Turn]:
        """The execution that a forward belongs to, and its turn there: the expected one, or a new one."""
        running = self._running
        if running is not None and self.waiting:
            turn = Turn(self._num_calls, number, False)
            if running.expects(turn):
                try:
                    running.resume()
                    return running, turn
                except torch.OutOfMemoryError:  # the caller holds more than was foreseen
                    running.leave()
        self._running = None
        charged, heap = self.accounts.counted()
        if not self.waiting:
            self._done, self._num_calls, self._whole = (), 0, True
            self._gaps = CallerBytes(self.accounts, heap)
            waiting = len(_ALL) > 1 and any(calls.waiting for calls in _ALL)
            running = None if waiting else self.steady.again(number, self.patterns.last, charged)
            if running is not None:
                self._running, self.recent = running, [running]
                return running, running.turns[0]
        if self.waiting:
            graphs = [number, *(pending.turn.graph for pending in self.waiting)]
            self.prospects.raise_share([self.captured[graph] for graph in graphs], waiting=True)
        for pending in self.waiting:
            pending.running.trim()
        pattern, running = single(number) if self.waiting else self.patterns.expected(number), None
        if sum(len(self.captured[turn.graph].graph.ops) for turn in pattern) > 2 * _MOST_OPS:
            pattern = single(number)
        if pattern != single(number):
            try:
                running = self._begin(self.unit(pattern), pattern)
            except InfeasibleError:  # call by call it fitted before: each drops what the others need
                self.patterns.never_fits(pattern)
                pattern = single(number)
        running = running or self._begin(self.unit(pattern), pattern)
        try:
            if pattern == single(number) and not self.waiting:
                unit, several = self.unit(pattern), len(self.patterns.last) > len(pattern)
                if several or not self.num_steps:
                    self.prospects.look_further(unit, self.captured[number], running.held, several=several)
            for calls in _ALL:
                if calls.waiting:
                    need = partial(calls._expected_need)
                    calls.prospects.look_ahead(calls.units, calls.waiting, running.held, _freed, need)
        except BaseException:
            running.close()
            raise
        if not self.waiting:
            self._running, self.recent = running, []
            self.steady.note(running, self.unit(pattern), self.patterns.last, charged)
        self.recent.append(running)
        return running, pattern[0]

    def inference(self, number: int, args: list[Any], *, trains: bool = False) -> list[Any]:
        """Run a graph of one part: no backward follows; ``trains`` = it gives gradients itself."""
        with self.accounts.turn:
            self.accounts.open_step(None)
            self.accounts.note_tensors(args)
            one = self.captured[number]
            if one.stale:
                self._measure_again(one, args)
            turns = (Turn(0, number, False),)
            running = self._begin(self.unit(turns), turns, trains=trains)
            given = [*args, *one.program.constants]
            args.clear()
            try:
                outputs, _ = self._run(running, partial(running.run, [], given))
            finally:
                running.close()
            self.recent = [running] if not self.waiting else self.recent
            self.num_forwards += 1
            return outputs

    def _run(
        self, running: Running, run: Callable[[], tuple[list[Any], list[Any], Observation]]
    ) -> tuple[list[Any], list[Any]]:
        before = len(running.divergences)
        try:
            outputs, rest, seen = run()
        except BaseException:
            running.leave()
            if not running.open:
                running.close()
            raise
        finally:
            if len(running.divergences) > before:
                self._noted(running, before)
        own = max(seen.heap_left - seen.heap, 0) * (len(running.turns) > 1 or running.left_arena)
        if self._gaps is not None and self._num_calls:
            self._gaps.ran(seen, own)
        elif self._gaps is not None:
            self._gaps = CallerBytes(self.accounts, self._gaps.start + own)
        self.observed_charged = max(self.observed_charged, running.charged)
        return outputs, rest

    def _noted(self, running: Running, before: int) -> None:
        """Decide what later steps do about divergences: a live block there only costs a fresh arena."""
        new = running.divergences[before:]
        self.num_divergences += len(new)
        self.steady.drop()
        if any(divergence.reason != "overlap" for divergence in new):
            for turn in running.turns:
                self.captured[turn.graph].stale = True

    # backward

    def backward(self, args: list[Any], by_group: GradientGroups | None = None) -> list[Any]:
        """Run a backward; ``args`` is the token followed by the gradients of the outputs.

        Args:
            args: emptied.
            by_group: takes groups of gradients while the backward goes on; None = all come at its end.

        Raises:
            TightropeError: something that it needs was changed since the forward, or is gone.
        """
        pending: Pending = args[0].pending
        tangents = args[1:]
        args.clear()
        with self.accounts.turn:
            if self._gaps is not None:
                self._gaps.enter()
            self.accounts.leave_caller()
            again = _torch.keeps_graph()
            pending.check()
            came = self.forms.arrived(pending, tangents)
            if not came.read:
                return self._nothing(pending, again=again)
            number = self._form(pending, came)
            if came.layouts and number != pending.turn.graph and not self._has_room(pending, number):
                number = self._form(pending, replace(came, layouts=()))
                self._form(pending, came)  # from the next step on
            self.forms.laid_out(number, tangents)
            if again or number != pending.turn.graph or not pending.resume():
                gradients = self._backward_of_rest(pending, number, tangents, again=again)
                return self._handed(pending, gradients, again=again)
            running, kept = pending.running, pending.begin_backward()
            if by_group is not None and running.can_announce(by_group.groups):
                pending.begin_groups(kept, tangents, by_group.groups)
                by_group.more = partial(self._next_group, pending)
                return self._next_group(pending)
            gradients, _ = self._run(running, partial(running.run, kept, tangents))
            return self._handed(pending, gradients)

    def _next_group(self, pending: Pending) -> list[Any]:
        """Go on with a backward up to the next gradients that it announces."""
        with self.accounts.turn:
            gradients, _ = self._run(pending.running, pending.run_group)
            return self._handed(pending, gradients, more=pending.running.in_groups)

    def _handed(
        self, pending: Pending, gradients: list[Any], *, again: bool = False, more: bool = False
    ) -> list[Any]:
        """Note which gradients the caller gets, and unless ``more`` come, that the backward is over."""
        if not more:
            self._done += (ended(self._done, pending.call),)
            self._whole = self._whole and not again
            if not again:
                pending.finish()
        if not again and self._gaps is not None and self._num_calls > 1:
            self._gaps.hand_over(pending.call, gradients)
        return gradients

    def _nothing(self, pending: Pending, *, again: bool) -> list[Any]:
        """No gradient came: eager runs nothing."""
        self._whole = False
        pending.running.leave()
        pending.num_backwards += 1
        if not again:
            pending.kept, pending.inputs = None, []
            pending.finish()
        return [None] * len(self.captured[pending.turn.graph].graph.parts[1].outputs)

    def _form(self, pending: Pending, came: Arrived) -> int:
        """The form of the graph for a backward; later steps expect what is learned from it."""
        number, following = self.forms.learn(pending, came)
        self._done = standing_for(self._done, pending.call, following)
        return number

    def _has_room(self, pending: Pending, number: int) -> bool:
        """Tell whether the backward of another form can be made from what the forward left."""
        try:
            self._begin(self.forms.rest(pending, number), (Turn(0, number, True),), but=pending).close()
        except JudgeError:
            raise
        except TightropeError:
            return False
        return True

    def _backward_of_rest(self, pending: Pending, number: int, tangents: list[Any], again: bool) -> list[Any]:
        """Plan the backward of a form of the graph from what the forward left, and run it."""
        pending.running.leave()
        turns = (Turn(0, number, True),)
        while True:
            unit = self.forms.rest(pending, number)
            try:
                rest = self._begin(unit, turns, but=pending)
                break
            except InfeasibleError:
                if not pending.drop(self.captured[pending.turn.graph].graph):
                    raise
        try:
            given = [*self.forms.inputs_of_rest(unit, pending, number), *tangents]
            tangents.clear()
            pending.num_backwards += 1
            if not again:
                pending.kept, pending.inputs = None, []
            self.recent.append(rest)
            gradients, _ = self._run(rest, partial(rest.run, [], given))
        finally:
            rest.close()
        return gradients

    def end(self, pending: Pending) -> None:
        """Note that nothing can come of a forward any more."""
        with self.accounts.turn:
            if not pending.num_backwards:
                self._whole = False
                self._lacked(pending)
            self.accounts.leave_caller()
            running = pending.running
            self.waiting.discard(pending)
            running.open.discard(pending)
            if not self.waiting:
                self._complete()
            if not running.open and running is not self._running:
                running.close()

    def _complete(self) -> None:
        """Learn from the turns of a unit, when nothing is pending."""
        running, self._running = self._running, None
        gaps, pattern = self._gaps, self._done
        if running and gaps and self._whole and self.steady.covers(running, pattern, gaps):
            self.num_steps, self._gaps = self.num_steps + 1, None
            running.close()
            return
        if gaps is not None and self._whole and 2 * self._num_calls == len(pattern) and pattern:
            if len(pattern) > 2:
                self.patterns.note_dropped(pattern, gaps.dropped)
            self.patterns.learn(pattern, free=all(running.was_free for running in self.recent))
            unit = self.unit(pattern)
            self._learn(unit, unit.headroom.observe_peak(gaps.growth, gaps.held))
            self.num_steps += 1
        self._gaps = None
        if running is not None:
            running.close()

    def close(self) -> None:
        """Give everything back that no step is using."""
        for unit in self.units.values():
            unit.close()


def _under_way() -> CallerSoFar | None:
    """What code of the caller took so far between the parts of the steps under way, if any is."""
    every = [(calls, gaps) for calls in _ALL if (gaps := calls._gaps) is not None]
    earlier = sum(max((u.headroom.peak for u in calls.units.values()), default=0) for calls, _ in every)
    coming = sum(calls.prospects.future.update().state for calls, _ in every)
    grown, forwards = sum(gaps.grown() for _, gaps in every), sum(len(calls.waiting) for calls, _ in every)
    return CallerSoFar(grown, earlier, coming, forwards) if every else None


def _freed() -> Bytes:
    """What forwards of all models that wait for a backward could drop."""
    return sum(p.droppable(calls.captured[p.turn.graph].graph)[1] for calls in _ALL for p in calls.waiting)


def _relieve() -> bool:
    """Let pending forwards drop what can be computed again, for code of the caller that lacks room."""
    return sum(calls._give_up(None, everywhere=False) for calls in _ALL) > 0
