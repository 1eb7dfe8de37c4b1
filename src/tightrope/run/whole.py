"""Run one captured whole step: the graph with its updates, one part, one arena."""

from collections.abc import Sequence
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.capture.optim import Updates
from tightrope.capture.program import Program
from tightrope.capture.whole import whole_program, with_updates
from tightrope.core import TightropeError
from tightrope.run.accounts import Accounts
from tightrope.run.calls import Calls
from tightrope.run.foresee import Foresight
from tightrope.run.status import StatusLine
from tightrope.run.unit import Settings


class WholeStep:
    """A captured forward and backward with the updates of an optimizer, as one graph of one part.

    Args:
        program: forward and backward, as captured.
        real: the tensors behind its inputs.
        settings: what the user asked for.
        accounts: of the process.
        status: status line.
        updates: the optimizer.
        parameters: what is trained, by position in ``real``.
        labels: names of parameters.
        why: cause of its first plan, for the report.

    Attributes:
        parts: the graph without its updates, and where its inputs and outputs stand.
        number: of the graph in ``calls``.
        calls: what runs the graph.
        num_steps: that ran.
        total_norm: of the gradients of the last run before they were clipped; None where they are not
            clipped by it.
    """

    def __init__(
        self,
        program: Program,
        real: Sequence[Any],
        settings: Settings,
        accounts: Accounts,
        status: StatusLine,
        *,
        updates: Updates,
        parameters: dict[int, torch.Tensor],
        labels: dict[torch.Tensor, str],
        why: str,
    ) -> None:
        self.updates, self.parameters, self.labels, self.accounts = updates, parameters, labels, accounts
        self.num_steps = 0
        self.total_norm: torch.Tensor | None = None
        self._patterns = updates.patterns(parameters.values())
        chosen = [at for at, flags in zip(parameters, self._patterns, strict=True) if flags is not None]
        self._updated = [parameters[at] for at in chosen]
        with _torch.real_tensors():
            wanted = self._wanted()
        self.parts = whole_program(
            program, dict(zip(chosen, wanted, strict=True)), updates.clip, self._stacked(chosen)
        )
        others = [parameter for at, parameter in parameters.items() if at not in chosen]
        self.calls = Calls(settings, accounts, status, Foresight(others, accounts.allocator))
        self.calls.units.why = why
        self.number = self.calls.add(self.parts.program, self._extended(real), finish=self._with_updates)

    def outdated(self) -> bool:
        """Tell whether the optimizer wants other parameters updated, or in another way, than planned."""
        return self.updates.patterns(self.parameters.values()) != self._patterns

    def run(self, args: list[Any]) -> list[Any]:
        """Run the step and return the outputs; gradients of parameters not updated are handed over."""
        self._check(args)
        extended = self._extended(args)
        args.clear()
        results = self.calls.inference(self.number, extended, trains=True)
        self.num_steps += 1
        gradients = results[self.parts.num_outputs :]
        del results[self.parts.num_outputs :]
        if self.clips_by_norm:
            self.total_norm = gradients.pop()
        with torch.no_grad():
            for at, gradient in zip(self.parts.kept, gradients, strict=True):
                _hand_over(self.parameters[at], gradient)
        if self._updated:
            self.updates.finish(self._updated)
        return results

    @property
    def clips_by_norm(self) -> bool:
        """Whether the step returns the total norm of the gradients behind everything else."""
        return self.parts.num_returned > self.parts.num_outputs + len(self.parts.kept)

    @property
    def rule(self) -> str:
        """Name of the rule by which parameters are updated; empty where none is."""
        return "" if self.updates.rule is None else self.updates.rule.name

    def given(self, args: Sequence[Any]) -> list[Any]:
        """Everything that the next run would be given, with arguments as captured."""
        self._check(args)
        return [*self._extended(args), *self.calls.captured[self.number].program.constants]

    def close(self) -> None:
        """Give everything back that no step is using."""
        self.calls.close()

    def _wanted(self) -> list[Any]:
        """What updates need; state made here is held from now on, so it counts as held at the mark."""
        if not self._updated:
            return []
        before = self.accounts.heap()
        wanted = self.updates.wanted(self._updated)
        self.accounts.marked += self.accounts.heap() - before
        return wanted

    def _stacked(self, positions: Sequence[int]) -> list[int]:
        """Order the parameters that are updated as their norms are stacked in ``clip_grad_norm_``.

        They are given to it in the order of the model's parameters, then of the optimizer's.
        """
        if self.updates.clip.norm is None:
            return []
        order = {p: number for number, p in enumerate({**self.labels, **self.updates.groups()})}
        ordered = sorted(positions, key=lambda at: order[self.parameters[at]])
        return [ordered[k] for k in _torch.order_of_norms([self.parameters[at] for at in ordered])]

    def _with_updates(self, program: Program) -> Program:
        if not self._updated:
            return program
        with _torch.real_tensors():
            labels = [self.labels.get(parameter, "") for parameter in self._updated]
            priced = self.updates.priced(self._updated, labels, self.accounts.allocator)
        return with_updates(self.parts, program, dict(zip(self.parts.trained, priced, strict=True)))

    def _extended(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the whole step: as captured, then optimizer state, then settings."""
        if not self._updated:
            return list(args)
        with _torch.real_tensors(), self.accounts.unlimited():  # the plan for what is left may refuse
            states = self.updates.states(self._updated)
            settings = self.updates.settings(self._updated)
        return [*args, *(tensor for state in states for tensor in state), *settings]

    def _check(self, args: Sequence[Any]) -> None:
        for at, parameter in self.parameters.items():
            if args[at].data_ptr() != parameter.data_ptr():
                raise TightropeError(
                    f"parameter {self.label(parameter)!r} was replaced by another tensor since the step was "
                    "planned: make a new step."
                )
        for parameter in self._updated:
            if parameter.grad is not None:
                raise TightropeError(
                    f"parameter {self.label(parameter)!r} has a gradient already, which the step would "
                    "ignore: set it to None with optimizer.zero_grad()."
                )

    def label(self, parameter: torch.Tensor) -> str:
        """Name a parameter for people."""
        return self.labels.get(parameter, f"of shape {tuple(parameter.shape)}")


def _hand_over(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Do what autograd does with a gradient: keep it, or add it to the one that is there."""
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)
