"""Bytes that the caller will hold and does not hold yet: the state of optimizers before their first step.

Idea        Optimizers that exist are found by the garbage collector, once; what each keeps per
            parameter follows from its class and its options.
Guarantee   Exact for the optimizers of ``torch.optim`` that are listed; others are taken to keep
            nothing until they do.
Gaps        An optimizer that is made after the first forward is seen at the next one.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from tightrope.core import Bytes, round_up

_Group = dict[str, Any]
_COPIES: Final[dict[str, Callable[[_Group], int]]] = {
    "SGD": lambda group: int(bool(group.get("momentum"))),
    "Adam": lambda group: 2 + bool(group.get("amsgrad")),
    "AdamW": lambda group: 2 + bool(group.get("amsgrad")),
    "NAdam": lambda _: 2,
    "RAdam": lambda _: 2,
    "Adamax": lambda _: 2,
    "Adadelta": lambda _: 2,
    "RMSprop": lambda group: 1 + bool(group.get("momentum")) + bool(group.get("centered")),
}
"""Tensors of the parameter's size that an optimizer keeps for it."""
_STEPS: Final = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop")
"""Those that count steps in a tensor of their own; NAdam has a second one."""
_SMALL: Bytes = 64
_LOOKS: Final = 3
"""Forwards at which optimizers are looked for until one is found: one look takes about 20 ms."""


class Foresight:
    """What a model's training will hold and does not hold yet.

    Args:
        parameters: of the model.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = {id(p): weakref.ref(p) for p in parameters if p.requires_grad}
        self._found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._looks = _LOOKS if self._parameters else 0
        self._complete = False

    def _look(self) -> None:
        """Look for optimizers that hold one of the parameters."""
        self._looks -= 1
        for value in gc.get_objects():
            if issubclass(type(value), torch.optim.Optimizer) and self._holds(value):
                self._found.add(value)

    def _holds(self, optimizer: torch.optim.Optimizer) -> bool:
        members = (p for group in optimizer.param_groups for p in group["params"])
        return any((known := self._parameters.get(id(p))) is not None and known() is p for p in members)

    @property
    def trained(self) -> Bytes:
        """Bytes of the parameters that are trained."""
        alive = (known() for known in self._parameters.values())
        return sum(p.untyped_storage().nbytes() for p in alive if p is not None)

    @property
    def known(self) -> bool:
        """Whether an optimizer of the parameters was found."""
        return len(self._found) > 0

    def missing(self) -> Bytes:
        """Bytes that the state will take and does not take yet."""
        if self._complete:
            return 0
        if not self.known and self._looks:
            self._look()
        total = sum(_missing(optimizer) for optimizer in self._found)
        self._complete = self.known and total == 0
        return total


def _missing(optimizer: torch.optim.Optimizer) -> Bytes:
    name = type(optimizer).__name__
    copies = _COPIES.get(name)
    if copies is None:
        return 0
    total = 0
    for group in optimizer.param_groups:
        each = copies(group)
        for parameter in group["params"]:
            if parameter.requires_grad and not optimizer.state.get(parameter):
                total += each * round_up(parameter.untyped_storage().nbytes())
                total += _SMALL * ((name in _STEPS) + (name == "NAdam"))
    return total
