"""Run one captured program under a budget: choose a plan, lease an arena, replay, check.

call:      forward            user code (loss)        backward            user code (optimizer)
arena:     [ leased, planned addresses .............................. ] [ idle: pages on demand ]
limit:     [ on, always ................................................................... ]

A step that allocates otherwise than planned still ends right, from the heap under the same limit.
The next one is measured and planned anew; after a second such step the program stays on the heap.
"""

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from tightrope.capture import _torch
from tightrope.capture.costs import price_program
from tightrope.capture.dynamo import environment
from tightrope.capture.program import Program
from tightrope.core import Bytes, InfeasibleError, Plan, TightropeError, format_bytes
from tightrope.native.allocator import Divergence
from tightrope.plan import PlanCache, base_schedule, smallest, solve
from tightrope.price.store import PriceStore
from tightrope.run.arenas import Arenas
from tightrope.run.between import Between
from tightrope.run.chosen import Chosen, choose
from tightrope.run.emit import emit
from tightrope.run.flight import Flight, FreshPrices, Replayed
from tightrope.run.ledger import Ledger, Window
from tightrope.run.progress import Progress
from tightrope.run.refusal import CAPTURE_SLACK, RESERVE, Refusal
from tightrope.run.verify import Verified, digest, made_up_tangents, unplanned_step, verify
from tightrope.run.watched import watched

_SCALAR: Bytes = 64
_SPARE = 16
"""A plan is made anew where more than this part of its arena was left free in vain."""


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        budget: total bytes, or text such as "60%" of what the unplanned step needs.
        verify: compare the first step with a reference.
        seed: of the search.
        seconds: of search; None = until the default effort is spent.
        planner: name in the registry.
    """

    budget: Bytes | Callable[[Bytes], Bytes]
    verify: bool = True
    seed: int = 0
    seconds: float | None = None
    planner: str = "auto"


class PlannedRunner:
    """Runs one training program; see `tightrope.capture.dynamo.Runner`.

    State: the chosen plan, the arenas, and what was observed. One thread at a time.

    Attributes:
        divergences: allocations that did not go as planned, since the start.
        num_replans: plans made because of them.
        note: why planned addresses are off, or the empty string.
        last_used: when a forward began last.
        when_fits: called in every forward once its plan is known to fit.
        share: bytes that the arena, and what lives outside of it, may take where several graphs run
            under one budget; None = whatever is left.
        least: the same of the smallest plan, found where there is a share.
        most: the same of the plan that recomputes nothing, likewise.
    """

    when_fits: Callable[[], None] = staticmethod(lambda: None)
    share: Bytes | None = None
    least: Bytes = 0
    most: Bytes = 0

    def __init__(
        self,
        program: Program,
        real: Sequence[Any],
        options: Options,
        ledger: Ledger,
        progress: Progress,
        *,
        shared: bool = False,
    ) -> None:
        self.options, self.ledger, self.progress = options, ledger, progress
        ledger.note_tensors(real)
        parameters = [tensor for tensor in real if isinstance(tensor, torch.nn.Parameter)]
        ledger.note_tensors(parameter.grad for parameter in parameters)
        self._stateless = self._without_state(parameters)
        self.raw = program
        self.program = self._price(real, PriceStore(program.graph.environment))
        self.cache = PlanCache()
        self.arenas = Arenas(ledger.allocator) if ledger.allocator is not None else None
        self.chosen: Chosen | None = None
        self.verified: Verified | None = None
        self.divergences: list[Divergence] = []
        self.num_replans = 0
        self.note = ""
        self.persistent: Bytes = 0
        self.observed_peak: Bytes = 0
        self.observed_charged: Bytes = 0
        self.num_forwards = self.num_steps = 0
        self.last_used = time.monotonic_ns()
        self._stale = False
        self.between = Between(sum(size for size in self._tangent_sizes() if size > _SCALAR))
        self._aloft: weakref.ref[Flight] | None = None
        self._left_behind: Bytes = 0
        self._held_first: Bytes = 0
        self._planned_for: tuple[Bytes | None, Bytes] = (None, 0)
        self.budget = self._budget()
        if shared:
            self._start_small()
        self._choose(self._available(ledger.charged_at_mark()))

    def _price(self, real: Sequence[Any], store: PriceStore) -> Program:
        with self.progress.task("measuring ops", len(self.raw.graph.ops)) as tick:
            return price_program(self.raw, real, allocator=self.ledger.allocator, store=store, tick=tick)

    def _budget(self) -> Bytes:
        """The budget in bytes; a share counts everything that is held now, and the unplanned step."""
        asked = self.options.budget
        if not callable(asked):
            return asked
        whole = solve(self.program.graph, budget=2**60, planner="given").forecast
        held = max(self.ledger.charged_at_mark() + self._tangents(), whole.persistent)
        return asked(held + whole.arena + whole.outside + self.between.rooms()[0] + RESERVE)

    def _without_state(self, parameters: Sequence[torch.nn.Parameter]) -> Bytes:
        """Bytes of parameters whose optimizer has made no state yet, as far as can be seen."""
        return sum(p.untyped_storage().nbytes() for p in parameters if p.requires_grad)

    def _start_small(self) -> None:
        """Take the smallest plan's bytes as the share; what others take is theirs to count."""
        graph = self.program.graph
        with self.progress.task("looking for the smallest plan", 1):
            plan = smallest(graph, seed=self.options.seed)
        self.cache.store(graph, plan, planner="smallest")
        whole = solve(graph, budget=2**60, planner="given").forecast
        self.least = self.share = plan.forecast.arena + plan.forecast.outside
        self.most = whole.arena + whole.outside
        self.between = Between(0)

    def _available(self, charged: Bytes) -> Bytes:
        """Bytes that the step may still use when ``charged`` are held by everything else."""
        return self.budget - charged - self._tangents() - RESERVE + self._left_behind

    def _tangents(self) -> Bytes:
        return sum(self._tangent_sizes())

    def _tangent_sizes(self) -> list[Bytes]:
        nodes = [node for node in self.program.placeholders if str(node.target).startswith("tangents")]
        storages = {self.program.storage_of[node] for node in nodes if node in self.program.storage_of}
        return [self.program.graph.storages[storage].size for storage in storages]

    def _choose(self, available: Bytes) -> Chosen:
        """Keep the present plan while it fits; else find one for ``available`` bytes.

        What the user's code takes between forward and backward (a loss from logits) is left free.
        """
        now = self.chosen
        if now is not None and self._suits(now.plan, available):
            return now
        *rooms, least = self.between.rooms()
        for room in rooms:
            with suppress(InfeasibleError):
                plan = self._solve(self._free(available, room))
                break
        else:
            room = least
            plan = self._last_resort(available, least, wanted=rooms[0] if rooms else least)
        self.persistent = self.budget - available - RESERVE + self._left_behind
        if not self.num_steps:
            self._held_first = self.budget - available - self.program.graph.persistent
        self._planned_for = self.share, room
        self.chosen = choose(self.program, plan, self.ledger.allocator)
        return self.chosen

    def _last_resort(self, available: Bytes, least: Bytes, *, wanted: Bytes) -> Plan:
        """Plan beside the least room; a refusal forgets what was learned, perhaps from a single case."""
        try:
            return self._solve(self._free(available, least), room=least, wanted=wanted)
        except InfeasibleError:
            self.between.forget()
            raise

    def _free(self, available: Bytes, room: Bytes) -> Bytes:
        free = available - room
        return free if self.share is None else min(free, self.share)

    def _suits(self, plan: Plan, available: Bytes) -> bool:
        """Tell whether a plan fits, and does not recompute for room that turned out not to be needed."""
        share, room = self._planned_for
        said, needed = plan.forecast, self.between.needed
        fits = said.arena + said.outside <= self._free(available, needed)
        spare = self.between.seen and said.ns > said.base_ns and (room - needed) * _SPARE > said.arena
        return fits and self.share == share and not spare

    def _solve(self, available: Bytes, *, room: Bytes = 0, wanted: Bytes = 0) -> Plan:
        """Find a plan beside ``room``; the budget that a refusal suggests leaves the ``wanted`` room."""
        graph = self.program.graph
        shift = self.budget - available - graph.persistent
        with self.progress.search(self.budget) as report:
            try:
                return solve(
                    graph,
                    budget=max(available + graph.persistent, 1),
                    planner=self.options.planner,
                    seconds=self.options.seconds,
                    seed=self.options.seed,
                    progress=report,
                    cache=self.cache,
                )
            except InfeasibleError as error:
                waiting = max(self.arenas.num_busy - 1, 0) if self.arenas is not None else 0
                trained = 0 if self.num_steps else self._stateless
                grown = max(shift - room - self._held_first, 0) if self.num_steps else 0
                refusal = Refusal(self.budget, shift - room, room, wanted, waiting, trained, grown)
                raise refusal.restated(error) from None

    # the three entry points

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the forward part; the last result is the token that carries what is kept."""
        with self.ledger.turn:
            return self._forward(args)

    def _forward(self, args: list[Any]) -> list[Any]:
        self.ledger.open_step(None)
        self.ledger.note_tensors(args)
        self.last_used = time.monotonic_ns()
        if self._stale:
            self._measure_again(args)
        self._look_back()
        arena, charge = self.arenas.reclaim() if self.arenas is not None else (None, 0)
        try:
            held = self.ledger.charged() - charge
            if not self.num_forwards and self.share is None:
                left = min(held - self.ledger.charged_at_mark(), CAPTURE_SLACK)
                self._left_behind = max(self._left_behind, left)
            chosen = self._choose(self._available(held))
            self.when_fits()
            if self.options.verify and self.verified is None:
                self.verified = self._verify(chosen, args)
            arena = self._fit(arena, chosen)
            with self.ledger.window(profiled=self.num_forwards == 0) as window:
                replayed = self._replayed(chosen, arena, 0, lambda: chosen.code.forward(args))
        except BaseException:
            self._finish(arena)
            raise
        self._note(window)
        self.num_forwards += 1
        outputs, kept = replayed.result
        versions = [kept[position]._version for position in chosen.code.visible]
        reached = self._reached(replayed, chosen.num_forward)
        flight = Flight(chosen, kept, versions, arena, reached, window.left, window.above, self.ledger.held())
        runner, retire = self, replayed.divergence is not None
        flight.release = lambda flight: runner._landed(flight, retire=retire)
        self._aloft = weakref.ref(flight)
        self.ledger.explain(
            f"{format_bytes(max(self.budget - flight.charged, 0))} were left for code between forward and "
            "backward; the next forward leaves what it lacked."
        )
        token = torch.empty(0)
        token.flight = flight  # type: ignore[attr-defined]
        self.observed_peak = window.above or self.observed_peak
        return [*outputs, token]

    def backward(self, args: list[Any]) -> list[Any]:
        """Run the rest of the schedule and return the gradients.

        Raises:
            TightropeError: something that it needs was changed since the forward, or is gone.
        """
        flight: Flight = args[0].flight
        tangents = args[1:]
        args.clear()
        with self.ledger.turn:
            return self._backward(flight, tangents)

    def _backward(self, flight: Flight, tangents: list[Any]) -> list[Any]:
        kept = self._take(flight)
        backward = flight.chosen.code.backward
        assert backward is not None
        # Planned addresses are for a backward that frees what the forward kept, and for the only one.
        start = flight.reached if flight.kept is None and not flight.num_backwards else -1
        flight.num_backwards += 1
        self.ledger.explain("")
        with self.ledger.window(profiled=self.num_steps == 0, held=flight.held) as window:
            replayed = self._replayed(flight.chosen, flight.arena, start, lambda: backward(kept, tangents))
        self._note(window)
        self._note_between(window.before - flight.charged)
        self._reached(replayed, flight.chosen.num_allocations)
        if flight.kept is None:
            if replayed.divergence is not None:
                self._finish(flight.arena, retire=True)
            flight.land()
        self.num_steps += 1
        if window.charged:
            self.observed_peak = max(flight.peak, flight.held - flight.chosen.released + window.above)
        gradients: list[Any] = replayed.result
        return gradients

    def _take(self, flight: Flight) -> list[Any]:
        """What the forward kept, if it is still what it was; the flight holds on to it only if it must."""
        if flight.kept is None:
            raise TightropeError("backward ran twice on one forward: pass retain_graph=True to the first.")
        for position, version in zip(flight.chosen.code.visible, flight.versions, strict=True):
            if flight.kept[position]._version != version:
                raise TightropeError(
                    "a tensor that the backward needs (a parameter, an input or an output of the model) was "
                    "changed in place between forward and backward: change it after the backward, or change "
                    "a clone."
                )
        if _torch.keeps_graph():
            return list(flight.kept)
        kept, flight.kept = flight.kept, None
        return kept

    def inference(self, args: list[Any]) -> list[Any]:
        """Not used: programs without a backward have their own runner."""
        raise TightropeError("this program has a backward.")

    def close(self) -> None:
        """Give everything back that no step is using."""
        if self.arenas is not None:
            self.arenas.close()

    # divergence

    def _reached(self, replayed: Replayed, planned: int) -> int:
        """Allocations served as planned so far; fewer than planned is a divergence too."""
        if 0 <= replayed.reached < planned:
            self._diverged(Divergence(replayed.reached, 0, 0, "short", 0))
            return -1
        return replayed.reached

    def _diverged(self, divergence: Divergence) -> None:
        """Decide what the next step does about it: a live block there only costs a fresh arena."""
        self.divergences.append(divergence)
        self._stale = self._stale or divergence.reason != "overlap"

    def _measure_again(self, args: Sequence[Any]) -> None:
        """Price every op again and plan anew; the second time, give planned addresses up."""
        self._stale = False
        if self.num_replans:
            self.close()
            self.note = (
                f"allocations differed from the plan again ({len(self.divergences)} times by now): "
                "the step runs from the heap under the same limit"
            )
            return
        self.num_replans += 1
        self.chosen = None
        self.close()
        graph = msgspec.structs.replace(self.raw.graph, environment=environment(args))
        self.raw = replace(self.raw, graph=graph)
        self.program = self._price(args, FreshPrices(graph.environment))

    # helpers

    def _fit(self, arena: int | None, chosen: Chosen) -> int | None:
        """Lease an arena of the plan's size; None where addresses are not planned."""
        if self.arenas is None:
            return None
        if self.note:
            self._finish(arena, retire=True)
            return None
        return self.arenas.fit(arena, chosen.arena)

    def _finish(self, arena: int | None, *, retire: bool = False) -> None:
        if self.arenas is not None and arena is not None:
            self.arenas.finish(arena, retire=retire)

    def _replayed(self, chosen: Chosen, arena: int | None, start: int, run: Callable[[], Any]) -> Replayed:
        """Run with planned addresses; a divergence is noted and repaired before the next step."""
        allocator = self.ledger.allocator
        if allocator is None or arena is None or start < 0:
            return Replayed(run(), -1)
        allocator.begin_replay(arena, chosen.table, start=start)
        try:
            result = run()
        finally:
            end = allocator.end_replay()
            if end.divergence is not None:
                self._diverged(end.divergence)
        return Replayed(result, -1 if end.divergence is not None else end.reached, end.divergence)

    def _note(self, window: Window) -> None:
        """Keep the largest charge; what came before the first step is not this program's."""
        before = window.before if self.num_forwards else 0
        self.observed_charged = max(self.observed_charged, before, window.charged)

    def _note_between(self, extra: Bytes) -> None:
        """Learn what user code takes between forward and backward, tangents aside."""
        if self.share is None:
            self.between.took(extra - self._tangents())

    def _look_back(self) -> None:
        """Learn from a backward that failed before it came here; autograd holds its memory until the next."""
        waiting = self._aloft() if self._aloft is not None else None
        if waiting is not None and not waiting.num_backwards and self.ledger.refused():
            self._learn(waiting)
            del waiting
            _torch.run_tiny_backward()

    def _landed(self, flight: Flight, *, retire: bool) -> None:
        with self.ledger.turn:
            self._learn(flight)
            self.ledger.explain("")
            self._finish(flight.arena, retire=retire)

    def _learn(self, flight: Flight) -> None:
        """Learn from a forward whose backward never began what the code after it lacked."""
        refused = self.ledger.refused()
        if refused and not flight.num_backwards and self.share is None:
            self.between.lacked(refused - flight.charged - self._tangents())

    def _verify(self, chosen: Chosen, args: list[Any]) -> Verified:
        """Compare with the unplanned graph where it fits, else value by value within the budget."""

        def planned(inputs: list[Any], tangents: list[Any]) -> tuple[list[str], list[str]]:
            return self._digested(chosen, inputs, tangents)

        self.close()
        tangents = made_up_tangents(self.program)
        with self.progress.task("checking the first step", 1):
            room = self._available(self.ledger.charged()) + self._tangents()
            if solve(self.program.graph, budget=2**60, planner="given").forecast.peak <= room:
                try:
                    name = "the unplanned captured graph"
                    return verify(planned, unplanned_step(self.program), name, args, tangents)
                except torch.OutOfMemoryError:
                    gc.collect()
            program, count = watched(self.program, chosen.plan.schedule)

            def reference(inputs: list[Any], given: list[Any]) -> tuple[list[str], list[str]]:
                return self._digested(chosen, inputs, given, program)

            name = f"the same ops without planned addresses; {count} recomputed values equal their first"
            return verify(planned, reference, name, args, tangents)

    def _digested(
        self, chosen: Chosen, inputs: list[Any], tangents: list[Any], program: Program | None = None
    ) -> tuple[list[str], list[str]]:
        """Run a whole step in an arena of its own, or ``program`` from the heap, and keep only digests."""
        code = chosen.code if program is None else emit(program, chosen.plan.schedule)
        backward = code.backward
        assert backward is not None
        arena = self._own_arena(chosen, program)
        try:
            (outputs, kept), reached, _ = self._replayed(chosen, arena, 0, lambda: code.forward(inputs))
            left = [digest(value) for value in outputs]
            del outputs
            gradients, *_ = self._replayed(chosen, arena, reached, lambda: backward(kept, tangents))
            right = [digest(value) for value in gradients]
            del gradients
        finally:
            self._finish(arena)
            self.close()
        return left, right

    def _own_arena(self, chosen: Chosen, program: Program | None) -> int | None:
        return self.arenas.fit(None, chosen.arena) if self.arenas is not None and program is None else None


class InferenceRunner:
    """Runs a program without a backward: exact frees, under the limit, no arena."""

    def __init__(self, program: Program, ledger: Ledger) -> None:
        self.ledger = ledger
        self.code = emit(program, base_schedule(program.graph))

    def inference(self, args: list[Any]) -> list[Any]:
        """Run all ops; every value is released right after its last use."""
        self.ledger.open_step(None)
        self.ledger.note_tensors(args)
        outputs, _ = self.code.forward(args)
        return outputs

    def forward(self, args: list[Any]) -> list[Any]:
        """Not used: there is no backward to keep anything for."""
        raise TightropeError("this program has no backward.")

    def backward(self, args: list[Any]) -> list[Any]:
        """Not used: there is no backward."""
        raise TightropeError("this program has no backward.")
