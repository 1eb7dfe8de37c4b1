"""Run one captured program under a budget: choose a plan, lease an arena, replay, check.

call:      forward            user code (loss)        backward            user code (optimizer)
arena:     [ leased, planned addresses .............................. ] [ idle: pages on demand ]
limit:     [ on, always ................................................................... ]
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.capture.costs import price_program
from tightrope.capture.program import Program
from tightrope.core import Bytes, InfeasibleError, Plan, TightropeError, format_bytes
from tightrope.native.allocator import Divergence
from tightrope.plan import PlanCache, base_schedule, solve
from tightrope.price.store import PriceStore
from tightrope.run.arenas import Arenas
from tightrope.run.chosen import Chosen, choose
from tightrope.run.emit import emit
from tightrope.run.ledger import Ledger
from tightrope.run.progress import Progress
from tightrope.run.verify import Verified, digest, made_up_tangents, unplanned_step, verify

RESERVE: Bytes = 65536
"""Held back for the runtime itself: copies of the generator's state (5,056 bytes each) that are made
while a graph is captured and while the first step is checked."""


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


@dataclass
class Flight:
    """A forward whose backward has yet to come."""

    chosen: Chosen
    kept: list[Any] | None
    versions: list[int]
    arena: int | None
    reached: int
    release: Callable[[], None] = field(default=lambda: None)

    def land(self) -> None:
        """Give the arena back, once."""
        release, self.release = self.release, lambda: None
        release()

    def __del__(self) -> None:
        self.land()


class PlannedRunner:
    """Runs one training program; see `tightrope.capture.dynamo.Runner`.

    State: the chosen plan, the arenas, and what was observed. One thread at a time.
    """

    def __init__(
        self, program: Program, real: Sequence[Any], options: Options, ledger: Ledger, progress: Progress
    ) -> None:
        self.options, self.ledger, self.progress = options, ledger, progress
        ledger.note_tensors(real)
        ledger.note_tensors(tensor.grad for tensor in real if isinstance(tensor, torch.nn.Parameter))
        self.raw, self.real = program, list(real)
        self.program = self._price(PriceStore(program.graph.environment))
        self.real = []
        self.cache = PlanCache()
        self.arenas = Arenas(ledger.allocator) if ledger.allocator is not None else None
        self.chosen: Chosen | None = None
        self.verified: Verified | None = None
        self.divergences: list[Divergence] = []
        self.persistent: Bytes = 0
        self.observed_peak: Bytes = 0
        self.observed_charged: Bytes = 0
        self.num_steps = 0
        self._live_before: Bytes = 0
        self.budget = self._budget()
        self._choose(self._available(ledger.charged_at_mark()))

    def _price(self, store: PriceStore) -> Program:
        with self.progress.task("measuring ops", len(self.raw.graph.ops)) as tick:
            return price_program(self.raw, self.real, allocator=self.ledger.allocator, store=store, tick=tick)

    def _budget(self) -> Bytes:
        asked = self.options.budget
        if not callable(asked):
            return asked
        whole = solve(self.program.graph, budget=2**60, planner="given").forecast
        return asked(whole.persistent + whole.peak)

    def _available(self, charged: Bytes) -> Bytes:
        """Bytes that the step may still use when ``charged`` are held by everything else."""
        return self.budget - charged - self._tangents() - RESERVE

    def _tangents(self) -> Bytes:
        nodes = [node for node in self.program.placeholders if str(node.target).startswith("tangents")]
        storages = {self.program.storage_of[node] for node in nodes if node in self.program.storage_of}
        return sum(self.program.graph.storages[storage].size for storage in storages)

    def _choose(self, available: Bytes) -> Chosen:
        """Keep the present plan while it fits; else find one for ``available`` bytes."""
        now = self.chosen
        if now is not None and now.plan.forecast.arena + now.plan.forecast.outside <= available:
            return now
        self.persistent = self.budget - available - RESERVE
        plan = self._solve(available, planner=self.options.planner)
        if now is not None and self.ledger.allocator is not None:
            self.ledger.allocator.drop_plan(now.table)
        self.chosen = choose(self.program, plan, self.ledger.allocator)
        return self.chosen

    def _solve(self, available: Bytes, *, planner: str, seed_shift: int = 0) -> Plan:
        graph = self.program.graph
        shift = self.budget - available - graph.persistent
        with self.progress.search(self.budget) as report:
            try:
                return solve(
                    graph, budget=max(available + graph.persistent, 1), planner=planner, seconds=self.options.seconds,
                    seed=self.options.seed + seed_shift, progress=report, cache=self.cache,
                )  # fmt: skip
            except InfeasibleError as error:
                raise _shifted(error, self.budget, shift) from None

    # the three entry points

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the forward part; the last result is the token that carries what is kept."""
        self.ledger.note_tensors(args)
        arena, charge = self.arenas.reclaim() if self.arenas is not None else (None, 0)
        try:
            chosen = self._choose(self._available(self.ledger.charged() - charge))
            if self.options.verify and self.verified is None:
                self.verified = self._verify(chosen, args)
            arena = self.arenas.fit(arena, chosen.arena) if self.arenas is not None else None
            self._begin_peak()
            (outputs, kept), reached = self._replayed(chosen, arena, 0, lambda: chosen.code.forward(args))
            self.observed_peak = self._peak()
        except BaseException:
            if arena is not None and self.arenas is not None:
                self.arenas.finish(arena)
            raise
        versions = [kept[position]._version for position in chosen.code.visible]
        flight = Flight(chosen, kept, versions, arena, reached)
        if self.arenas is not None and arena is not None:
            arenas, leased = self.arenas, arena
            flight.release = lambda: arenas.finish(leased)
        token = torch.empty(0)
        token.flight = flight  # type: ignore[attr-defined]
        return [*outputs, token]

    def backward(self, args: list[Any]) -> list[Any]:
        """Run the rest of the schedule and return the gradients."""
        flight: Flight = args[0].flight
        tangents = args[1:]
        args.clear()
        if flight.kept is None:
            raise TightropeError("backward ran twice on one forward: pass retain_graph=True to the first.")
        for position, version in zip(flight.chosen.code.visible, flight.versions, strict=True):
            if flight.kept[position]._version != version:
                raise TightropeError(
                    "a tensor that the backward needs (a parameter, an input or an output of the model) was changed "
                    "in place between forward and backward: change it after the backward, or change a clone."
                )
        kept = list(flight.kept) if _torch.keeps_graph() else flight.kept
        if kept is flight.kept:
            flight.kept = None
        code = flight.chosen.code
        assert code.backward is not None
        run = code.backward
        gradients: list[Any]
        gradients, _ = self._replayed(
            flight.chosen, flight.arena, flight.reached, lambda: run(kept, tangents)
        )
        if flight.kept is None:
            flight.land()
        self.num_steps += 1
        self.observed_peak = max(self.observed_peak, self._peak() - self._tangents())
        return gradients

    def inference(self, args: list[Any]) -> list[Any]:
        """Not used: programs without a backward have their own runner."""
        raise TightropeError("this program has a backward.")

    # helpers

    def _replayed(
        self, chosen: Chosen, arena: int | None, start: int, run: Callable[[], Any]
    ) -> tuple[Any, int]:
        """Run with planned addresses; a divergence is noted and repaired before the next step."""
        allocator = self.ledger.allocator
        if allocator is None or arena is None or start < 0:
            return run(), -1
        allocator.begin_replay(arena, chosen.table, start=start)
        try:
            result = run()
        finally:
            end = allocator.end_replay()
            if end.divergence is not None:
                self._diverged(end.divergence)
        return result, -1 if end.divergence is not None else end.reached

    def _diverged(self, divergence: Divergence) -> None:
        self.divergences.append(divergence)

    def _begin_peak(self) -> None:
        if self.ledger.allocator is not None:
            self.ledger.allocator.reset_peaks()
            self._live_before = self.ledger.allocator.stats().live

    def _peak(self) -> Bytes:
        """Bytes made by the step at its peak so far."""
        if self.ledger.allocator is None:
            return 0
        stats = self.ledger.allocator.stats()
        self.observed_charged = max(self.observed_charged, stats.charged_peak + self.ledger.older)
        return stats.live_peak - self._live_before

    def _verify(self, chosen: Chosen, args: list[Any]) -> Verified:
        """Compare with the unplanned graph where it fits, else with a second plan."""

        def planned(inputs: list[Any], tangents: list[Any]) -> tuple[list[str], list[str]]:
            return self._digested(chosen, inputs, tangents)

        if self.arenas is not None:
            self.arenas.close()
        tangents = made_up_tangents(self.program)
        with self.progress.task("checking the first step", 1):
            room = self._available(self.ledger.charged()) + self._tangents()
            if solve(self.program.graph, budget=2**60, planner="given").forecast.peak <= room:
                try:
                    name = "the unplanned captured graph"
                    return verify(planned, unplanned_step(self.program), name, args, tangents)
                except torch.OutOfMemoryError:
                    gc.collect()
            second = self._second_plan(chosen, room)
            other = choose(self.program, second, self.ledger.allocator)

            def reference(inputs: list[Any], given: list[Any]) -> tuple[list[str], list[str]]:
                return self._digested(other, inputs, given)

            name = f"a second plan ({second.planner}) with other recomputations"
            return verify(planned, reference, name, args, tangents)

    def _second_plan(self, chosen: Chosen, room: Bytes) -> Plan:
        """A plan that differs from the chosen one and fits the same arena."""
        for shift, planner in ((0, "greedy"), (1, "anneal"), (2, "anneal"), (0, "given")):
            try:
                plan = self._solve_fresh(room, planner, shift)
            except InfeasibleError:
                continue
            if plan.schedule != chosen.plan.schedule:
                return plan
        return chosen.plan

    def _solve_fresh(self, available: Bytes, planner: str, shift: int) -> Plan:
        graph = self.program.graph
        return solve(
            graph, budget=available + graph.persistent, planner=planner, seed=self.options.seed + shift
        )

    def _digested(
        self, chosen: Chosen, inputs: list[Any], tangents: list[Any]
    ) -> tuple[list[str], list[str]]:
        """Run a whole step in an arena of its own and keep only digests."""
        backward = chosen.code.backward
        assert backward is not None
        arena = self.arenas.fit(None, chosen.arena) if self.arenas is not None else None
        try:
            (outputs, kept), reached = self._replayed(chosen, arena, 0, lambda: chosen.code.forward(inputs))
            left = [digest(value) for value in outputs]
            del outputs
            gradients, _ = self._replayed(chosen, arena, reached, lambda: backward(kept, tangents))
            right = [digest(value) for value in gradients]
            del gradients
        finally:
            if arena is not None and self.arenas is not None:
                self.arenas.finish(arena)
                self.arenas.close()
        return left, right


class InferenceRunner:
    """Runs a program without a backward: exact frees, under the limit, no arena."""

    def __init__(self, program: Program, ledger: Ledger) -> None:
        self.ledger = ledger
        self.code = emit(program, base_schedule(program.graph))

    def inference(self, args: list[Any]) -> list[Any]:
        """Run all ops; every value is released right after its last use."""
        self.ledger.note_tensors(args)
        outputs, _ = self.code.forward(args)
        return outputs

    def forward(self, args: list[Any]) -> list[Any]:
        """Not used: there is no backward to keep anything for."""
        raise TightropeError("this program has no backward.")

    def backward(self, args: list[Any]) -> list[Any]:
        """Not used: there is no backward."""
        raise TightropeError("this program has no backward.")


def _shifted(error: InfeasibleError, budget: Bytes, shift: Bytes) -> InfeasibleError:
    """Restate the planner's numbers in bytes on the device: other holders of memory included."""
    found = None if error.smallest_found is None else error.smallest_found + shift
    bound = error.lower_bound + shift - RESERVE
    best = (
        "no feasible budget was found"
        if found is None
        else f"smallest feasible found {format_bytes(found)} ({found} bytes)"
    )
    hint = (
        f"Try budget={found}, a smaller batch or a shorter sequence."
        if found is not None
        else "Try a smaller batch."
    )
    return InfeasibleError(
        f"asked {format_bytes(budget)} ({budget} bytes); {best}; proved: no plan of this graph needs less than "
        f"{format_bytes(bound)}. The op that sets the bound: {error.op}. {hint}",
        asked=budget, smallest_found=found, lower_bound=bound, op=error.op,
    )  # fmt: skip
