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
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from tightrope.capture.clip import Clip
from tightrope.capture.whole import Update, Wanted
from tightrope.core import Allocation, PlanFileError, TightropeError, printable
from tightrope.core.arguments import check_kind
from tightrope.native.hook.allocator import Allocator
from tightrope.price.kernels import register
from tightrope.price.measure import measure

Group: TypeAlias = dict[str, Any]
Pattern: TypeAlias = tuple[bool, ...]
Options: TypeAlias = tuple[tuple[str, tuple[float, ...]], ...]
States: TypeAlias = dict[Tensor, dict[str, Any]]
_SAMPLE = 8192
"""Elements on which an update is measured; its time and temporaries grow with the parameter."""
_REFUSED = ("fused", "capturable", "differentiable")
_FLAGS = ("nesterov", "maximize", "amsgrad", "decoupled_weight_decay")
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "betas", "eps")


@register("tightrope.sgd_")
def update_sgd(parameter: Tensor, gradient: Tensor, *rest: Any) -> None:
    """Apply stochastic gradient descent in place.

    Formula: ``d = g + weight_decay * p``; ``m = momentum * m + (1 - dampening) * d`` (``m = d`` at first);
    ``p = p - lr * m``, or with Nesterov ``p = p - lr * (d + momentum * m)``.

    Args:
        parameter: changed in place.
        gradient: of the same shape.
        rest: the momentum buffer, where there is one; settings as float64 (lr, momentum, dampening,
            weight decay, 1 where the buffer is new); whether there is momentum, weight decay, Nesterov's
            rule, and whether to maximize.
    """
    *state, settings, momentum, decays, nesterov, maximize = rest
    lr, factor, dampening, decay, first = settings.tolist()
    step = _descent(parameter, gradient, maximize, decay if decays else 0)
    if momentum:
        buffer: Tensor = state[0].mul_(factor)
        if first:
            buffer.copy_(step)
        else:
            buffer.add_(step, alpha=1 - dampening)
        step = step.add(buffer, alpha=factor) if nesterov else buffer
    parameter.add_(step, alpha=-lr)


@register("tightrope.adam_")
def update_adam(parameter: Tensor, gradient: Tensor, *rest: Any) -> None:
    """Apply Adam or AdamW in place.

    Formula: ``m = lerp(m, g, 1 - beta1)``; ``v = beta2 * v + (1 - beta2) * g * g``;
    ``p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)``.

    Args:
        parameter: changed in place.
        gradient: of the same shape.
        rest: mean, mean square, [largest mean square]; settings as float64 (factor of the parameter,
            weight decay of the gradient, beta1, beta2, eps, step size, root of the correction); whether
            the decay is decoupled, there is one, AMSGrad is used, and whether to maximize.
    """
    *state, settings, decoupled, decays, amsgrad, maximize = rest
    shrink, decay, beta1, beta2, eps, step_size, root_correction = settings.tolist()
    mean, square = state[0], state[1]
    if decoupled and decays:
        parameter.mul_(shrink)
    step = _descent(parameter, gradient, maximize, decay if decays and not decoupled else 0)
    mean.lerp_(step, 1 - beta1)
    square.mul_(beta2).addcmul_(step, step, value=1 - beta2)
    del step
    if amsgrad:
        square = torch.maximum(state[2], square, out=state[2])
    scale = square.sqrt().div_(root_correction).add_(eps)
    parameter.addcdiv_(mean, scale, value=-step_size)


def _descent(parameter: Tensor, gradient: Tensor, maximize: bool, decay: float) -> Tensor:
    step = -gradient if maximize else gradient
    if decay == 0:
        return step
    return step.add_(parameter, alpha=decay) if maximize else step.add(parameter, alpha=decay)


class Rule(Protocol):
    """How one class of optimizers updates a parameter."""

    name: str
    num_settings: int
    options: frozenset[str]
    update: Callable[..., None]

    def pattern(self, group: Group) -> Pattern:
        """Flags that decide which tensors an update reads and which temporaries it makes."""

    def state(self, parameter: Tensor, group: Group, states: States) -> tuple[Tensor, ...]:
        """State tensors that an update changes; made where they are missing."""

    def settings(self, parameter: Tensor, group: Group, states: States) -> tuple[float, ...]:
        """Numbers of the next update."""

    def finish(self, parameter: Tensor, states: States) -> None:
        """Write down that the update was made."""


class Sgd:
    """Rule of `torch.optim.SGD`."""

    name, num_settings = "tightrope.sgd_", 5
    options = frozenset({"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"})
    update = staticmethod(update_sgd)

    def __init__(self) -> None:
        self._new: dict[Tensor, Tensor] = {}

    def pattern(self, group: Group) -> Pattern:
        """See `Rule`."""
        names = ("momentum", "weight_decay", "nesterov", "maximize")
        return tuple(bool(group[name]) for name in names)

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

    def settings(self, parameter: Tensor, group: Group, states: States) -> tuple[float, ...]:
        """See `Rule`."""
        first = _momentum(states, parameter) is None
        return group["lr"], group["momentum"], group["dampening"], group["weight_decay"], float(first)

    def finish(self, parameter: Tensor, states: States) -> None:
        """See `Rule`."""
        buffer = self._new.pop(parameter, None)
        if buffer is not None and _momentum(states, parameter) is None:
            states[parameter]["momentum_buffer"] = buffer


class Adam:
    """Rule of `torch.optim.Adam` and `torch.optim.AdamW`."""

    name, num_settings = "tightrope.adam_", 7
    options = frozenset(
        {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay"}
    )
    update = staticmethod(update_adam)

    def pattern(self, group: Group) -> Pattern:
        """See `Rule`."""
        decoupled = bool(group.get("decoupled_weight_decay"))
        flags = (bool(group[name]) for name in ("weight_decay", "amsgrad", "maximize"))
        return (decoupled, *flags)

    def state(self, parameter: Tensor, group: Group, states: States) -> tuple[Tensor, ...]:
        """See `Rule`; names and values are those that torch begins with."""
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
        state = states[parameter]
        if not state:
            wide = torch.get_default_dtype() == torch.float64
            state["step"] = torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32)
            state.update({name: _zeros(parameter) for name in names})
        return tuple(state[name] for name in names)

    def settings(self, parameter: Tensor, group: Group, states: States) -> tuple[float, ...]:
        """See `Rule`."""
        beta1, beta2 = group["betas"]
        lr, decay, step = group["lr"], group["weight_decay"], (states[parameter]["step"] + 1).item()
        corrected = lr / (1 - beta1**step)
        return 1 - lr * decay, decay, beta1, beta2, group["eps"], corrected, (1 - beta2**step) ** 0.5

    def finish(self, parameter: Tensor, states: States) -> None:
        """See `Rule`."""
        states[parameter]["step"] += 1


def rule_named(name: str) -> Rule:
    """Find a rule by the name of its kernel.

    Raises:
        TightropeError: there is none of that name.

    Example:
        >>> rule_named("tightrope.adam_").num_settings
        7
    """
    for rule in (Sgd, Adam):
        if rule.name == name:
            return rule()
    raise TightropeError(f"no optimizer updates by {name!r:.80}.")


def read_options(rule: Rule, options: Options, where: str) -> Group:
    """Read hyperparameters that `Updates.options` wrote.

    Raises:
        PlanFileError: a name is missing, unknown or there twice, or has another number of values.
    """
    names = [name for name, _ in options]
    wrong = sorted(rule.options.symmetric_difference(names))
    if wrong or len(names) != len(rule.options):
        needed, there = ", ".join(sorted(rule.options)), ", ".join(map(printable, names))
        raise PlanFileError(f"{where}.options: {rule.name} needs {needed}; there are {there:.200}.")
    for name, numbers in options:
        if len(numbers) != (2 if name == "betas" else 1):
            raise PlanFileError(f"{where}.options: {name} has {len(numbers)} numbers.")
    return {name: numbers if name == "betas" else numbers[0] for name, numbers in options}


class Updates:
    """The optimizer's side of a step.

    Args:
        optimizer: None = gradients are handed over.
        clip: how gradients are clipped before it uses them.

    Raises:
        TightropeError: no rule for this class of optimizers.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None, clip: Clip | None = None) -> None:
        self.optimizer, self.clip = optimizer, clip or Clip()
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

    def settings(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Settings of the next update of each parameter, from the groups as they are now."""
        rule, states, groups = self._the_rule(), self._states(), self.groups()
        rows = [rule.settings(p, groups[p], states) for p in parameters]
        return list(torch.tensor(rows, dtype=torch.float64).unbind(0))

    def wanted(self, parameters: Sequence[Tensor]) -> list[Wanted]:
        """What the update of each parameter needs; its state is made where it is missing."""
        number = self._the_rule().num_settings
        return [Wanted(state, number) for state in self.states(parameters)]

    def options(self, parameter: Tensor) -> Options:
        """Hyperparameters of a parameter as numbers, by name; flags are 0 or 1."""
        group, wanted = self.groups()[parameter], self._the_rule().options
        found = ((name, group.get(name, False)) for name in (*_NUMBERS, *_FLAGS) if name in wanted)
        return tuple(
            (name, tuple(map(float, value if isinstance(value, tuple | list) else (value or 0,))))
            for name, value in found
        )

    def count(self, parameter: Tensor) -> float:
        """Updates that a parameter has had; where its rule does not count, 1 for any number of them."""
        states = self._states()
        counted = states.get(parameter, {}).get("step")
        return float(_momentum(states, parameter) is not None) if counted is None else float(counted)

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
            found.append(Update(rule.name, rule.pattern(group), label, *known[key]))
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
    check_kind("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.SGD, Adam or AdamW, or None")
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
    settings = torch.tensor(rule.settings(sample, group, states), dtype=torch.float64)
    flags = rule.pattern(group)
    price = measure(lambda: rule.update(sample, gradient, *tensors, settings, *flags), allocator)
    whole = num * parameter.element_size()
    allocations = tuple(
        Allocation(size * parameter.element_size() if asked == whole else asked, -1, start, end)
        for asked, _, start, end in price.allocations
    )
    return price.ns * max(size // max(num, 1), 1), allocations
