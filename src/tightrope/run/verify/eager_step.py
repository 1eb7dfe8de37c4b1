"""Compare runs of a planned step with eager ones, bit for bit.

Idea        When a whole step has run that `Sampling` picks, parameters, buffers, gradients and random states
            get the values that it began from, and the function, its backward, the clipping and the
            optimizer run as they are, on a copy of the optimizer's state.
Guarantee   A step passes if its results, parameters, buffers, optimizer state, gradients that it hands
            over and random states have eager's bits.
Complexity  One eager step per run that is compared, and copies of what it begins from, with eager's bytes:
            the budget does not hold for them.
Gaps        Inputs that the function changes are not put back. What it counts in Python sees this run too,
            but for attributes of the model.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tightrope.capture._eager import kernels_called, tensors_in, uncompiled
from tightrope.capture.optim import Updates
from tightrope.core import VerificationError
from tightrope.run.base.state import RandomStates, attributes_kept
from tightrope.run.execute.check import digest
from tightrope.run.execute.prepared import Proof
from tightrope.run.execute.running import Running
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.verify.eager import Sampling, Values, kernels_apart


@dataclass
class Beginning:
    """What a step begins from; copies lie outside of torch's memory."""

    tensors: list[tuple[torch.Tensor, Values]]
    gradients: dict[torch.Tensor, Values | None]
    state: dict[torch.Tensor, dict[str, Any]]
    random: RandomStates


class EagerStep:
    """The eager twin of a planned step."""

    def __init__(
        self,
        fn: Callable[..., Any],
        model: torch.nn.Module,
        updates: Updates,
        accounts: Accounts,
        sampling: Sampling,
    ) -> None:
        self._fn, self._model, self._accounts, self._sampling = fn, model, accounts, sampling
        self._optimizer, self._clip = updates.optimizer, updates.clip
        self._random: RandomStates | None = None
        self._begun: Beginning | None = None

    def begin(self) -> None:
        """Remember the random states that the next step begins from."""
        self._random, self._begun = RandomStates.now(self._model), None

    def planned(self, proof: Proof) -> None:
        """Remember what else a step begins from, where its run is one to be compared."""
        if self._random is not None and self._sampling.of([proof]):
            self._begun = self._beginning(self._random)

    def _beginning(self, random: RandomStates) -> Beginning:
        parameters = self._parameters()
        tensors = [*parameters.values(), *self._model.buffers()]
        states = self._optimizer.state if self._optimizer is not None else {}
        return Beginning(
            [(tensor, Values(tensor)) for tensor in tensors],
            {p: None if p.grad is None else Values(p.grad) for p in parameters.values()},
            {
                p: {k: Values(v) if isinstance(v, torch.Tensor) else v for k, v in state.items()}
                for p, state in states.items()
            },
            random,
        )

    def compare(
        self, result: Any, ran: Running, total_norm: torch.Tensor | None, args: Any, kwargs: Any
    ) -> None:
        """Make the step eagerly and compare, where this run is one to be compared.

        Raises:
            VerificationError: says what differs, and which kernels.
        """
        begin, self._begun = self._begun, None
        if begin is None:
            return
        proof = ran.prepared.proof
        found, end = self._shown(result, total_norm), begin.random.present()
        gradients = {p: p.grad for p in self._parameters().values()}
        try:
            with self._accounts.aside():
                wanted = self._eager(begin, args, kwargs)
            states = begin.random.present()
            different = [name for name in found | wanted if found.get(name) != wanted.get(name)]
            different += [f"the random state of {name}" for name in states.differing(end)]
            if different:
                with self._accounts.aside(), kernels_called() as called:
                    self._eager(begin, args, kwargs)
                said = kernels_apart({op.target for op in ran.prepared.graph.ops}, called)
                before = self._sampling.equal_before(proof.num_compared)
                raise VerificationError(f"{different[0]} differs from that of an eager step: {said}.{before}")
        finally:
            end.restore()
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
        proof.num_compared += 1
        proof.reference = (
            f"{len(found)} results, parameters, buffers, states and gradients, and the random states, equal "
            "those of an eager step, bit for bit"
        )

    def _parameters(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        known = set(found.values())
        others = [p for group in groups for p in group["params"] if p not in known]
        return found | {f"parameter {number}": p for number, p in enumerate(others)}

    def _updated(self) -> set[torch.Tensor]:
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        return {p for group in groups for p in group["params"]}

    def _shown(self, result: Any, total_norm: torch.Tensor | None) -> dict[str, str]:
        """Digests of all that a step leaves; an optimizer's parameters leave no gradients."""
        shown = {f"result {number}": value for number, value in enumerate(tensors_in(result))}
        shown |= {} if total_norm is None else {"the total norm": total_norm}
        parameters = self._parameters()
        shown |= parameters | dict(self._model.named_buffers())
        optimizer, updated = self._optimizer, self._updated()
        for name, parameter in parameters.items():
            if parameter not in updated and parameter.grad is not None:
                shown[f"the gradient of {name}"] = parameter.grad
            state = optimizer.state.get(parameter, {}) if optimizer else {}
            shown |= {f"{k} of {name}": v for k, v in state.items() if isinstance(v, torch.Tensor)}
        return {name: digest(value) for name, value in shown.items()}

    def _eager(self, begin: Beginning, args: Any, kwargs: Any) -> dict[str, str]:
        """Make the step from where it began; parameters and buffers keep eager's values."""
        with torch.no_grad():
            for tensor, values in begin.tensors:
                tensor.copy_(values.tensor())
        for parameter, gradient in begin.gradients.items():
            parameter.grad = None if gradient is None else gradient.tensor().clone()
        begin.random.restore()
        with uncompiled(self._model), attributes_kept(self._model), torch.enable_grad(), self._lent(begin):
            result = self._fn(*args, **kwargs)
            loss = result[0] if isinstance(result, tuple | list) else result
            loss.backward()
            updated = self._updated()
            total_norm = self._clip.eagerly([p for p in self._parameters().values() if p in updated])
            if self._optimizer is not None:
                self._optimizer.step()
            return self._shown(result, total_norm)

    @contextmanager
    def _lent(self, begin: Beginning) -> Iterator[None]:
        """Give the optimizer the state of the beginning, one kernel per tensor and no hooks."""
        optimizer = self._optimizer
        if optimizer is None:
            yield
            return
        state = {
            p: {k: v.tensor().clone() if isinstance(v, Values) else v for k, v in found.items()}
            for p, found in begin.state.items()
        }
        names = ("state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        kept = {name: getattr(optimizer, name) for name in names}
        foreach = [group.get("foreach") for group in optimizer.param_groups]
        try:
            optimizer.state = defaultdict(dict, state)
            for name in names[1:]:
                setattr(optimizer, name, type(kept[name])())
            for group in optimizer.param_groups:
                group["foreach"] = False
            yield
        finally:
            for name, value in kept.items():
                setattr(optimizer, name, value)
            for group, value in zip(optimizer.param_groups, foreach, strict=True):
                group["foreach"] = value
