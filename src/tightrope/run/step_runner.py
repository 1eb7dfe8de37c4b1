"""Run one captured whole step: the graph with its updates, one arena, one call."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.program import Program
from tightrope.capture.whole import whole_program, with_summaries, with_updates
from tightrope.core import Allocation, Bytes, Phase, TightropeError
from tightrope.judge import replay_schedule
from tightrope.price.store import PriceStore
from tightrope.run.chosen import Chosen
from tightrope.run.emit import emit
from tightrope.run.ledger import Ledger
from tightrope.run.optim import Updates
from tightrope.run.progress import Progress
from tightrope.run.runner import Options, PlannedRunner
from tightrope.run.verify import Verified, digest

_CLOCK: Iterator[int] = itertools.count(1)


class StepRunner(PlannedRunner):
    """A `PlannedRunner` whose program has one part, which updates parameters or fills ``.grad``.

    Args:
        program: forward and backward, as captured.
        real: the tensors behind its placeholders.
        options: what the user asked for.
        ledger: of the process.
        progress: status line.
        updates: the optimizer.
        parameters: what is trained, by position in ``real``.
        labels: names of parameters.

    Attributes:
        last_used: rises with every step of any runner; 0 = never ran.
    """

    def __init__(
        self,
        program: Program,
        real: Sequence[Any],
        options: Options,
        ledger: Ledger,
        progress: Progress,
        *,
        updates: Updates,
        parameters: dict[int, torch.Tensor],
        labels: dict[torch.Tensor, str],
    ) -> None:
        self.updates, self.parameters, self.labels = updates, parameters, labels
        self.last_used = 0
        self.patterns = updates.patterns(parameters.values())
        chosen = [at for at, pattern in zip(parameters, self.patterns, strict=True) if pattern is not None]
        self.updated = [parameters[at] for at in chosen]
        self.whole = whole_program(program, dict(zip(chosen, self._held_states(ledger), strict=True)))
        super().__init__(self.whole.program, self._extended(real), options, ledger, progress)

    def outdated(self) -> bool:
        """Tell whether the optimizer wants other parameters updated, or in another way, than planned."""
        return self.updates.patterns(self.parameters.values()) != self.patterns

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the whole step; the last result is an empty token."""
        self._check(args)
        extended = self._extended(args)
        args.clear()
        *results, token = super().forward(extended)
        token.flight.land()
        self.num_steps += 1
        self.last_used = next(_CLOCK)
        gradients = results[self.whole.num_outputs :]
        del results[self.whole.num_outputs :]
        with torch.no_grad():
            for at, gradient in zip(self.whole.kept, gradients, strict=True):
                _hand_over(self.parameters[at], gradient)
        if self.updated:
            self.updates.finish(self.updated)
        return [*results, token]

    def _check(self, args: Sequence[Any]) -> None:
        for at, parameter in self.parameters.items():
            if args[at].data_ptr() != parameter.data_ptr():
                raise TightropeError(
                    f"parameter {self._label(parameter)!r} was replaced by another tensor since the step was "
                    "planned: make a new step."
                )
        for parameter in self.updated:
            if parameter.grad is not None:
                raise TightropeError(
                    f"parameter {self._label(parameter)!r} has a gradient already, which the step would "
                    "ignore: set it to None with optimizer.zero_grad()."
                )

    def _label(self, parameter: torch.Tensor) -> str:
        return self.labels.get(parameter, f"of shape {tuple(parameter.shape)}")

    def _held_states(self, ledger: Ledger) -> list[tuple[torch.Tensor, ...]]:
        """Make missing optimizer state; it is held from now on, so it counts as held at the mark."""
        if not self.updated:
            return []
        stats = ledger.allocator.stats if ledger.allocator is not None else None
        before = stats().charged if stats is not None else 0
        with _torch.real_tensors():
            states = self.updates.states(self.updated)
        if stats is not None:
            ledger.marked += stats().charged - before
        return states

    def _extended(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the whole step: as captured, then optimizer state, then settings."""
        if not self.updated:
            return list(args)
        with _torch.real_tensors():
            states = self.updates.states(self.updated)
            settings = self.updates.settings(self.updated)
        return [*args, *(tensor for state in states for tensor in state), *settings]

    def _without_state(self, parameters: Sequence[torch.nn.Parameter]) -> Bytes:
        """All state exists when a whole step is planned."""
        return 0

    def _price(self, real: Sequence[Any], store: PriceStore) -> Program:
        program = super()._price(real, store)
        if self.updated:
            with _torch.real_tensors():
                labels = [self.labels.get(parameter, "") for parameter in self.updated]
                priced = self.updates.priced(self.updated, labels, self.ledger.allocator)
            program = with_updates(self.whole, program, dict(zip(self.whole.trained, priced, strict=True)))
        return replace(program, module=with_summaries(self.whole, digest))

    def _verify(self, chosen: Chosen, args: list[Any]) -> Verified:
        """Compare outputs and gradients; that no op reads a new value for an old one is judged.

        Raises:
            JudgeError: the schedule breaks a rule.
            VerificationError: results differ.
        """
        replay_schedule(self.program.graph, chosen.plan.schedule)
        return super()._verify(chosen, args)

    def _digested(
        self, chosen: Chosen, inputs: list[Any], tangents: list[Any], program: Program | None = None
    ) -> tuple[list[str], list[str]]:
        """Run the step without changing anything: updates only look at their gradients."""
        seen: dict[torch.fx.Node, str] = {}
        code = emit(_probed(program or self.program, seen), chosen.plan.schedule)
        arena = self._own_arena(chosen, program)
        try:
            (outputs, _), *_ = self._replayed(chosen, arena, 0, lambda: code.forward(inputs))
            left = [digest(value) for value in outputs]
            del outputs
        finally:
            self._finish(arena)
            self.close()
        return left, [digest(seen[nodes.settings]) for nodes in self.whole.trained.values()]


def _hand_over(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Do what autograd does with a gradient: keep it, or add it to the one that is there."""
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)


def _probed(program: Program, seen: dict[torch.fx.Node, str]) -> Program:
    """The program with updates that change nothing, but note their gradient and allocate the same."""
    calls = dict(program.calls)
    for op in program.graph.ops:
        call = program.calls[op.id]
        if op.phase is Phase.OPTIMIZER and call is not None:
            settings = call.args[-1]
            calls[op.id] = replace(call, target=partial(_probe, seen, settings, op.allocations))
    return replace(program, calls=calls)


def _probe(
    seen: dict[torch.fx.Node, str],
    settings: torch.fx.Node,
    allocations: Sequence[Allocation],
    _parameter: torch.Tensor,
    gradient: torch.Tensor,
    *_rest: Any,
) -> None:
    seen[settings] = digest(gradient)
    events = [(item.start, True, number) for number, item in enumerate(allocations)]
    events += [(item.end, False, number) for number, item in enumerate(allocations)]
    live: dict[int, torch.Tensor] = {}
    for _, begins, number in sorted(events):
        if begins:
            live[number] = torch.empty(allocations[number].bytes, dtype=torch.uint8)
        else:
            del live[number]
