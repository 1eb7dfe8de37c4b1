"""Choose which parameters a step updates, under limits on RAM, time and energy.

Idea        Every parameter has a gain. Take them in or leave them out one by one, those with the most
            gain per multiply-accumulate of their update first, and plan every set that might be the best:
            a set whose gains, with all that is still open, do not exceed the best one is not planned, nor
            is one that holds a set that did not fit.
Source      Sparse update: Lin et al., On-Device Training Under 256KB Memory (NeurIPS 2022), by another
            search
Guarantee   What is returned was planned within the limits, and its graph passed `judge.sparse`.
            Where ``closed``, no set with more gain fits, as far as what does not fit does not fit with
            more in it.
Complexity  At most ``plans`` plans, and 50 times as many sets that are looked at.
Gaps        Gains are added up, as if parameters helped apart; plans are searched, so a set that does not
            fit may fit with more search.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tightrope.core import Bytes, InfeasibleError, Machine, TightropeError
from tightrope_micro.compile import CompiledStep, compile_step
from tightrope_micro.judge.sparse import check_sparse
from tightrope_micro.paging.economy import Economy
from tightrope_micro.planning import STACK_RESERVE, num_macs
from tightrope_micro.sparse import updates_of, with_updates_of
from tightrope_micro.step import MicroStep

_SAME = 1e-12
_SETS = 50
"""Sets that are looked at per plan that may be made."""


@dataclass(frozen=True)
class SparseChoice:
    """The parameters that are updated, and the step that does it.

    Attributes:
        names: of them, in the order of the step.
        gain: share of all gains.
        compiled: within the limits.
        num_plans: that were made.
        closed: whether the search ended by itself.
    """

    names: tuple[str, ...]
    gain: float
    compiled: CompiledStep
    num_plans: int
    closed: bool


def gains_of(
    model: torch.nn.Module, samples: Sequence[Sequence[torch.Tensor]], **kwargs: Any
) -> dict[str, float]:
    """First-order decrease of the loss per unit of rate, by parameter: the squared norm of its mean gradient.

    Args:
        model: its forward returns the loss first.
        samples: inputs of some steps.
        kwargs: of every call.
    """
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    sums = {name: torch.zeros_like(one) for name, one in named.items()}
    kept = {name: value.clone() for name, value in model.named_buffers()}
    for sample in samples:
        found = model(*sample, **kwargs)
        loss = found[0] if isinstance(found, tuple) else found
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient / len(samples)
    with torch.no_grad():
        for name, value in model.named_buffers():
            value.copy_(kept[name])
    return {name: float(value.double().square().sum()) for name, value in sums.items()}


def sparse_step(step: MicroStep, names: Sequence[str]) -> MicroStep:
    """The step in which the named parameters alone are updated, judged.

    Raises:
        TightropeError: one of them is not updated in the step.
    """
    graph = with_updates_of(step.graph, names)
    check_sparse(step.graph, graph, names)
    at = {name: storage for storage, name in step.names.items()}
    held = {one.id: one.module for one in graph.storages if one.external}
    example = tuple(name for name in step.example if name in held.values())
    return MicroStep(graph, {storage: step.values[at[name]] for storage, name in held.items()}, held, example)


def choose_updates(
    step: MicroStep,
    machine: Machine,
    gains: Mapping[str, float],
    *,
    ram: Bytes,
    stack: Bytes = STACK_RESERVE,
    economy: Economy | None = None,
    plans: int = 60,
    compiles: Callable[[MicroStep], CompiledStep] | None = None,
) -> SparseChoice:
    """Choose the parameters with the most gain whose updates fit.

    Args:
        step: in which all are updated.
        machine: with a slower tier.
        gains: of every parameter that may be updated, at least 0; others are not.
        ram: bytes of all RAM.
        stack: bytes of it for the stack.
        economy: limits of modelled time and energy, and whether activations are paged.
        plans: that may be made.
        compiles: plans a step, or raises InfeasibleError; default: `compile_step` under the limits.

    Raises:
        InfeasibleError: no parameter alone can be updated within the limits.
        TightropeError: a gain is negative, or of what is no parameter of the step.
    """
    known = updates_of(step.graph)
    if wrong := [name for name, gain in gains.items() if name not in known or not gain >= 0]:
        raise TightropeError(
            f"gain of {wrong[0]!r}: {gains[wrong[0]]}; gains are at least 0, of {', '.join(known)}."
        )
    costs = {name: num_macs(step.graph, step.graph.ops[op]) for name, op in known.items()}
    order = sorted(gains, key=lambda name: (-gains[name] / max(1, costs[name]), name))
    usual = compiles or (lambda one: compile_step(one, machine, ram=ram, stack=stack, economy=economy))
    search = _SetSearch(step, {name: gains[name] for name in order}, usual, plans)
    search.descend(tuple(order), ())
    if search.best is None:
        assert search.refused is not None
        raise search.refused
    total = sum(gains.values())
    names = tuple(name for name in known if name in search.best[1])
    share = search.best[0] / total if total else 1.0
    return SparseChoice(names, share, search.best[2], search.num_plans, not search.ended)


@dataclass
class _SetSearch:
    """Sets that were planned, and the best of them."""

    step: MicroStep
    gains: Mapping[str, float]
    compiles: Callable[[MicroStep], CompiledStep]
    plans: int
    best: tuple[float, tuple[str, ...], CompiledStep] | None = None
    refused: InfeasibleError | None = None
    too_much: list[frozenset[str]] = field(default_factory=list)
    num_plans: int = 0
    num_sets: int = 0

    @property
    def ended(self) -> bool:
        """Whether a limit was reached: on plans, or on sets that were looked at."""
        return self.num_plans >= self.plans or self.num_sets >= _SETS * self.plans

    def descend(self, left: tuple[str, ...], taken: tuple[str, ...]) -> None:
        """Try the next parameter in, then out."""
        most = sum(self.gains[name] for name in (*left, *taken))
        if not left or (self.best is not None and most <= self.best[0] * (1 + _SAME)):
            return
        if self.ended:
            return
        self.num_sets += 1
        first, rest = left[0], left[1:]
        if self.fits((*taken, first)):
            self.descend(rest, (*taken, first))
        self.descend(rest, taken)

    def fits(self, names: tuple[str, ...]) -> bool:
        """Plan a set, unless it holds one that did not fit."""
        if any(one <= set(names) for one in self.too_much):
            return False
        self.num_plans += 1
        try:
            found = self.compiles(sparse_step(self.step, names))
        except InfeasibleError as error:
            self.refused = self.refused or error
            self.too_much.append(frozenset(names))
            return False
        gain = sum(self.gains[name] for name in names)
        if self.best is None or gain > self.best[0]:
            self.best = gain, names, found
        return True
