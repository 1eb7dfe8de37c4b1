"""Run one captured whole step: the graph with its updates, one part, one arena."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.capture._eager import has_gradient_hooks
from tightrope.capture._norms import order_of_norms
from tightrope.capture.chunks import chunked, counts, finer_counts, why_whole
from tightrope.capture.optim import Updates
from tightrope.capture.program import Program
from tightrope.capture.whole import Update, whole_program, with_updates
from tightrope.core import InfeasibleError, TightropeError
from tightrope.plan.bound import lower_bound
from tightrope.run.base.status import StatusLine
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.optimizer import Foresight
from tightrope.run.ledger.refusal import best_of
from tightrope.run.session.calls import Calls
from tightrope.run.session.captured import Rewritten
from tightrope.run.session.fused import FasterForm
from tightrope.run.session.unit import Settings


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
        form: the same call in the form that takes least time; None = as captured.

    Attributes:
        parts: the graph without its updates, and where its inputs and outputs stand.
        number: in ``calls`` of the graph that runs: the whole one, or one in chunks where that does not fit.
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
        form: FasterForm | None = None,
    ) -> None:
        self.updates, self.parameters, self.labels, self.accounts = updates, parameters, labels, accounts
        self.num_steps = 0
        self.total_norm: torch.Tensor | None = None
        self._patterns = updates.patterns(parameters.values())
        chosen = [at for at, flags in zip(parameters, self._patterns, strict=True) if flags is not None]
        self._updated = [parameters[at] for at in chosen]
        with _torch.real_tensors():
            wanted = self._wanted()
        state, stacked = dict(zip(chosen, wanted, strict=True)), self._stacked(chosen)
        self.parts = whole_program(form.program if form else program, state, updates.clip, stacked)
        self._form, self._source = form, self.parts
        if form is not None:
            self._source = whole_program(program, state, updates.clip, stacked)
        others = [parameter for at, parameter in parameters.items() if at not in chosen]
        self.calls = Calls(settings, accounts, status, Foresight(others, accounts.allocator))
        self.calls.units.why = why
        self._named = settings.chunk
        self._counts = [self._named] if self._named else None
        self._finer = self._named is None
        self._refused: dict[int, InfeasibleError] = {}
        self._num_chunks = 1
        self._priced: list[Update] | None = None
        with accounts.unlimited():  # shapes alone
            unfit = why_whole(self.parts.program) if self._named else ""
        if unfit:
            raise TightropeError(
                f"chunk={self._named}: the loss cannot be split into chunks of rows: {unfit}. Leave chunk "
                "out, or use cross_entropy with a mean or a sum, without weights, of all rows of a product."
            )
        extended = self._extended(real)
        try:
            self.number = self.calls.add(
                self.parts.program, extended, finish=self._with_updates, rewritten=self._rewritten()
            )
        except InfeasibleError as error:
            self._chunk(extended, error)

    def outdated(self) -> bool:
        """Tell whether the optimizer wants other parameters updated, or in another way, than planned."""
        return self.updates.patterns(self.parameters.values()) != self._patterns

    def run(self, args: list[Any]) -> list[Any]:
        """Run the step and return the outputs; gradients of parameters not updated are handed over."""
        self._check(args)
        extended = self._extended(args)
        args.clear()
        while True:
            try:
                results = self.calls.inference(self.number, extended, trains=True)
                break
            except InfeasibleError as error:  # before anything ran
                self._chunk(extended, error)
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
    def rewritten_as(self) -> str:
        """How the step differs from the one that was captured, in words; empty where it does not."""
        return rewritten.said if (rewritten := self.calls.captured[self.number].rewritten) else ""

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

    def _chunk(self, given: Sequence[Any], error: InfeasibleError) -> None:
        """Take the graph in more chunks from now on.

        Raises:
            InfeasibleError: no more chunks can be made: the best of what was found.
        """
        if self._form is not None:  # as captured it may fit whole
            raise error
        program = self.parts.program
        self._refused[self._num_chunks] = error.with_traceback(None)
        while num := self._next_count():
            with self.accounts.unlimited():  # shapes alone, and scalars
                split = chunked(program, num)
            if split is None:
                continue
            why = f"in {num} chunks of rows: no plan fits in fewer of those that were tried"
            limit = nullcontext() if self.num_steps else self.accounts.unlimited()  # as for the whole graph
            try:
                with limit:
                    self.number = self.calls.add(
                        split, given, why, finish=self._with_updates, rewritten=self._rewritten(num)
                    )
            except InfeasibleError as missed:
                self._num_chunks = num
                self._refused[num] = missed.with_traceback(None)
                continue
            except torch.OutOfMemoryError:  # so much is held that nothing can be measured
                break
            self._num_chunks = num
            floor = self._floor()
            if not self._counts or floor.lower_bound <= self.calls.budget:
                return
            self._refused[num] = floor
        raise best_of(self._refused, self._why_whole())

    def _rewritten(self, num_chunks: int = 0) -> Rewritten | None:
        """What a graph in so many chunks, or the form of the step, stands for."""
        if self._form is None and not num_chunks:
            return None
        source = self._with_updates(self._source.program).graph
        if self._form is None:
            return Rewritten(source, num_chunks)
        return replace(self._form.rewritten, source=source)

    def _why_whole(self) -> str:
        if self._named == 0 or self._num_chunks > 1:
            return ""
        unfit = f"nothing wide in it has rows for chunk={self._named}" if self._named else ""
        with self.accounts.unlimited():  # shapes alone
            return why_whole(self.parts.program) or unfit

    def _next_count(self) -> int:
        """The number of chunks to try next; 0 = none is left."""
        program = self.parts.program
        with self.accounts.unlimited():  # shapes alone
            if self._counts is None:
                self._counts = [] if self._named == 0 else list(counts(program))
            if not self._counts and self._finer:
                self._finer = False
                least = self._refused[self._num_chunks].smallest_found
                if least is not None:
                    self._counts = list(finer_counts(program, least - self.calls.budget))
        return self._counts.pop(0) if self._counts else 0

    def _floor(self) -> InfeasibleError:
        """What is proved of the bytes that the graph needs, without a search."""
        graph, asked = self.calls.captured[self.number].graph, self.calls.budget
        bound, op = lower_bound(graph, free_order=True)
        return InfeasibleError("too small", asked=asked, lower_bound=bound, op=graph.ops[op].describe())

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
        return [ordered[k] for k in order_of_norms([self.parameters[at] for at in ordered])]

    def _with_updates(self, program: Program) -> Program:
        if not self._updated:
            return program
        if self._priced is None:
            with _torch.real_tensors():
                labels = [self.labels.get(parameter, "") for parameter in self._updated]
                self._priced = self.updates.priced(self._updated, labels, self.accounts.allocator)
        return with_updates(self.parts, program, dict(zip(self.parts.trained, self._priced, strict=True)))

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
            if has_gradient_hooks(parameter):
                raise TightropeError(
                    f"parameter {self.label(parameter)!r} has a hook on its gradient, which a whole step "
                    "would not call. Remove it, or use tightrope.compile and optimizer.step()."
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
