"""Optimizer updates as ops that change one parameter and its state in place.

Idea        An update is one op per parameter: torch's own single-tensor arithmetic, kernel by
            kernel, with its temporaries inside. State lives in ``optimizer.state``, so that
            ``state_dict`` works; learning rates, step counts and the like are read at every call.
Source      torch.optim, ``foreach=False``; Kingma and Ba 2015; Loshchilov and Hutter 2019
Guarantee   Parameters and state are bit-equal to ``optimizer.step()`` with ``foreach=False`` on the
            same gradients. At most one temporary of the parameter's size for Adam, none for plain SGD.
Complexity  One pass over parameter, gradient and state per kernel.
Gaps        SGD, Adam and AdamW; hyperparameters must be numbers; not fused, capturable or
            differentiable; dense real parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from tightrope.capture.whole import Update
from tightrope.core import Allocation, TightropeError
from tightrope.native.allocator import Allocator
from tightrope.price.measure import measure

Group: TypeAlias = dict[str, Any]
Pattern: TypeAlias = tuple[Any, ...]
States: TypeAlias = dict[Tensor, dict[str, Any]]
_SAMPLE = 8192
"""Elements on which an update is measured; its time and temporaries grow with the parameter."""
_REFUSED = ("fused", "capturable", "differentiable")
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "betas", "eps")


@dataclass(frozen=True, slots=True)
class SgdSettings:
    """What one SGD update needs to know; ``first`` = the momentum buffer is new."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    first: bool


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """What one Adam update needs to know.

    ``decay`` times the parameter is added to the gradient; ``shrink`` scales the parameter itself.
    """

    shrink: float | None
    decay: float
    beta1: float
    beta2: float
    eps: float
    step_size: float
    root_correction: float
    amsgrad: bool
    maximize: bool


def update_sgd(parameter: Tensor, gradient: Tensor, *rest: Any) -> None:
    """Apply stochastic gradient descent in place; ``rest`` is [momentum buffer,] settings.

    Formula: ``d = g + weight_decay * p``; ``m = momentum * m + (1 - dampening) * d`` (``m = d`` at first);
    ``p = p - lr * m``, or with Nesterov ``p = p - lr * (d + momentum * m)``.
    """
    settings: SgdSettings = rest[-1]
    step = _descent(parameter, gradient, settings.maximize, settings.weight_decay)
    if settings.momentum != 0:
        buffer: Tensor = rest[0].mul_(settings.momentum)
        if settings.first:
            buffer.copy_(step)
        else:
            buffer.add_(step, alpha=1 - settings.dampening)
        step = step.add(buffer, alpha=settings.momentum) if settings.nesterov else buffer
    parameter.add_(step, alpha=-settings.lr)


def update_adam(parameter: Tensor, gradient: Tensor, *rest: Any) -> None:
    """Apply Adam or AdamW in place; ``rest`` is mean, mean square, [largest mean square,] settings.

    Formula: ``m = lerp(m, g, 1 - beta1)``; ``v = beta2 * v + (1 - beta2) * g * g``;
    ``p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)``.
    """
    settings: AdamSettings = rest[-1]
    mean, square = rest[0], rest[1]
    if settings.shrink is not None:
        parameter.mul_(settings.shrink)
    step = _descent(parameter, gradient, settings.maximize, settings.decay)
    mean.lerp_(step, 1 - settings.beta1)
    square.mul_(settings.beta2).addcmul_(step, step, value=1 - settings.beta2)
    del step
    if settings.amsgrad:
        square = torch.maximum(rest[2], square, out=rest[2])
    scale = square.sqrt().div_(settings.root_correction).add_(settings.eps)
    parameter.addcdiv_(mean, scale, value=-settings.step_size)


def _descent(parameter: Tensor, gradient: Tensor, maximize: bool, decay: float) -> Tensor:
    step = -gradient if maximize else gradient
    if decay == 0:
        return step
    return step.add_(parameter, alpha=decay) if maximize else step.add(parameter, alpha=decay)


class Rule(Protocol):
    """How one class of optimizers updates a parameter."""

    name: str
    update: Callable[..., None]

    def pattern(self, group: Group) -> Pattern:
        """What decides which tensors an update reads and which temporaries it makes."""

    def state(self, parameter: Tensor, group: Group, states: States) -> tuple[Tensor, ...]:
        """State tensors that an update changes; made where they are missing."""

    def settings(self, parameter: Tensor, group: Group, states: States) -> Any:
        """Settings of the next update."""

    def finish(self, parameter: Tensor, states: States) -> None:
        """Write down that the update was made."""


class Sgd:
    """Rule of `torch.optim.SGD`."""

    name = "tightrope.sgd_"
    update = staticmethod(update_sgd)

    def __init__(self) -> None:
        self._new: dict[Tensor, Tensor] = {}

    def pattern(self, group: Group) -> Pattern:
        """See `Rule`."""
        names = ("momentum", "weight_decay", "nesterov", "maximize")
        return ("sgd", *(bool(group[name]) for name in names))

    def state(self, parameter: Tensor, group: Group, states: States) -> tuple[Tensor, ...]:
        """See `Rule`; a new buffer enters ``optimizer.state`` after its first update, as in torch."""
        if group["momentum"] == 0:
            return ()
        buffer = _momentum(states, parameter)
        if buffer is None:
            buffer = self._new.get(parameter)
        if buffer is None:
            buffer = self._new[parameter] = _zeros(parameter)
        return (buffer,)

    def settings(self, parameter: Tensor, group: Group, states: States) -> SgdSettings:
        """See `Rule`."""
        first = _momentum(states, parameter) is None
        return SgdSettings(
            group["lr"], group["momentum"], group["dampening"], group["weight_decay"],
            group["nesterov"], group["maximize"], first,
        )  # fmt: skip

    def finish(self, parameter: Tensor, states: States) -> None:
        """See `Rule`."""
        buffer = self._new.pop(parameter, None)
        if buffer is not None and _momentum(states, parameter) is None:
            states[parameter]["momentum_buffer"] = buffer


class Adam:
    """Rule of `torch.optim.Adam` and `torch.optim.AdamW`."""

    name = "tightrope.adam_"
    update = staticmethod(update_adam)

    def pattern(self, group: Group) -> Pattern:
        """See `Rule`."""
        decoupled = bool(group.get("decoupled_weight_decay"))
        flags = (bool(group[name]) for name in ("weight_decay", "amsgrad", "maximize"))
        return ("adam", decoupled, *flags)

    def state(self, parameter: Tensor, group: Group, states: States) -> tuple[Tensor, ...]:
        """See `Rule`; names and values are those that torch begins with."""
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
        state = states[parameter]
        if not state:
            wide = torch.get_default_dtype() == torch.float64
            state["step"] = torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32)
            state.update({name: _zeros(parameter) for name in names})
        return tuple(state[name] for name in names)

    def settings(self, parameter: Tensor, group: Group, states: States) -> AdamSettings:
        """See `Rule`."""
        beta1, beta2 = group["betas"]
        lr, decay, step = group["lr"], group["weight_decay"], (states[parameter]["step"] + 1).item()
        decoupled = bool(group.get("decoupled_weight_decay"))
        return AdamSettings(
            shrink=1 - lr * decay if decoupled and decay != 0 else None,
            decay=0.0 if decoupled else decay,
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            step_size=lr / (1 - beta1**step),
            root_correction=(1 - beta2**step) ** 0.5,
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
        )

    def finish(self, parameter: Tensor, states: States) -> None:
        """See `Rule`."""
        states[parameter]["step"] += 1


class Updates:
    """The optimizer's side of a step.

    Raises:
        TightropeError: no rule for this class of optimizers.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.optimizer = optimizer
        self.rule: Rule | None = None if optimizer is None else _rule(optimizer)

    def groups(self) -> dict[Tensor, Group]:
        """Map every parameter of the optimizer to its group.

        Raises:
            TightropeError: a group has an option or a hyperparameter that no rule covers.
        """
        found: dict[Tensor, Group] = {}
        for group in [] if self.optimizer is None else self.optimizer.param_groups:
            _check(group)
            found.update(dict.fromkeys(group["params"], group))
        return found

    def patterns(self, parameters: Iterable[Tensor]) -> tuple[Pattern | None, ...]:
        """Which tensors and temporaries the update of each parameter takes; None = it is not updated."""
        groups = self.groups()
        return tuple(
            None if (group := groups.get(parameter)) is None else self._the_rule().pattern(group)
            for parameter in parameters
        )

    def states(self, parameters: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """State tensors of each parameter, made where they are missing."""
        rule, states, groups = self._the_rule(), self._states(), self.groups()
        return [rule.state(p, groups[p], states) for p in parameters]

    def settings(self, parameters: Sequence[Tensor]) -> list[Any]:
        """Settings of the next update of each parameter, from the groups as they are now."""
        rule, states, groups = self._the_rule(), self._states(), self.groups()
        return [rule.settings(p, groups[p], states) for p in parameters]

    def finish(self, parameters: Sequence[Tensor]) -> None:
        """Count the updates; run the optimizer's step hooks and tell learning rate schedulers."""
        rule, states = self._the_rule(), self._states()
        for parameter in parameters:
            rule.finish(parameter, states)
        assert self.optimizer is not None
        self.optimizer.step()  # there is no gradient, so this moves nothing

    def priced(
        self, parameters: Sequence[Tensor], labels: Sequence[str], allocator: Allocator | None
    ) -> list[Update]:
        """Measure the update of each parameter on a sample of its elements."""
        rule, groups = self._the_rule(), self.groups()
        known: dict[Any, tuple[int, tuple[Allocation, ...]]] = {}
        found = []
        for parameter, label in zip(parameters, labels, strict=True):
            group = groups[parameter]
            key = (rule.pattern(group), parameter.numel(), parameter.dtype)
            if key not in known:
                known[key] = _price(rule, parameter, group, allocator)
            found.append(Update(rule.name, rule.update, label, *known[key]))
        return found

    def _states(self) -> States:
        assert self.optimizer is not None
        return self.optimizer.state

    def _the_rule(self) -> Rule:
        assert self.rule is not None
        return self.rule


def _rule(optimizer: torch.optim.Optimizer) -> Rule:
    rules: dict[type, Callable[[], Rule]] = {
        torch.optim.SGD: Sgd,
        torch.optim.Adam: Adam,
        torch.optim.AdamW: Adam,
    }
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TightropeError(
            "LBFGS cannot be part of the step: one update takes the loss several times. Use "
            "model = tightrope.compile(model, budget=...), and call optimizer.step(closure) as ever."
        )
    if type(optimizer) not in rules:
        raise TightropeError(
            f"{type(optimizer).__name__} cannot be part of the step; SGD, Adam and AdamW of torch.optim can. "
            "Leave optimizer out and call optimizer.step() yourself: gradients are then in .grad."
        )
    return rules[type(optimizer)]()


def _check(group: Group) -> None:
    for name in _REFUSED:
        if group.get(name):
            raise TightropeError(f"optimizer option {name}=True is not supported in a step: leave it out.")
    for name in _NUMBERS:
        values = group.get(name, 0.0)
        for value in values if isinstance(values, tuple | list) else (values,):
            if isinstance(value, Tensor):
                raise TightropeError(
                    f"optimizer option {name} is a tensor: pass a number, it is read at every step."
                )


def _momentum(states: States, parameter: Tensor) -> Tensor | None:
    buffer: Tensor | None = states.get(parameter, {}).get("momentum_buffer")
    return buffer


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False)


def _price(
    rule: Rule, parameter: Tensor, group: Group, allocator: Allocator | None
) -> tuple[int, tuple[Allocation, ...]]:
    """Run the update on made-up tensors of at most `_SAMPLE` elements, and scale time and bytes.

    Scalars that torch wraps into tensors (8 bytes) do not grow with the parameter.
    """
    rule = type(rule)()
    size = parameter.numel()
    num = min(size, _SAMPLE)
    sample, gradient = (torch.full((num,), 0.5, dtype=parameter.dtype) for _ in range(2))
    states: States = {sample: {}}
    tensors = rule.state(sample, group, states)
    settings = rule.settings(sample, group, states)
    price = measure(lambda: rule.update(sample, gradient, *tensors, settings), allocator)
    whole = num * parameter.element_size()
    allocations = tuple(
        Allocation(size * parameter.element_size() if asked == whole else asked, -1, start, end)
        for asked, _, start, end in price.allocations
    )
    return price.ns * max(size // max(num, 1), 1), allocations
