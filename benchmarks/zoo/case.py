"""What a net of the zoo is: an entry that can be built, and the case that it builds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tightrope.core import TightropeError

Scale = Literal["bench", "test"]
Tag = Literal[
    "batchnorm",
    "conv",
    "custom_function",
    "dropout",
    "dynamic",
    "inplace",
    "lora",
    "moe",
    "tied",
    "transformer",
]
Make = Callable[[Scale], tuple[nn.Module, tuple[Tensor, ...]]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One net that can be built.

    Attributes:
        name: key in the registry.
        make: builds model and inputs; draws from the global random state.
        tags: properties that decide which checks make sense.
    """

    name: str
    make: Make
    tags: frozenset[Tag]


@dataclass(frozen=True, slots=True)
class Case:
    """A net in training mode with its batch; ``model(*inputs)`` is the scalar loss."""

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    tags: frozenset[Tag]

    @property
    def num_parameters(self) -> int:
        """Number of parameter elements, frozen ones included, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def entry(name: str, make: Make, *tags: Tag) -> Entry:
    """Describe a net."""
    return Entry(name, make, frozenset(tags))


def build_case(entry: Entry, *, seed: int, scale: Scale) -> Case:
    """Build one case from a seed without touching the global random state."""
    if scale not in get_args(Scale):
        raise TightropeError(f"no scale is called {scale!r}; there are: {', '.join(get_args(Scale))}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, inputs = entry.make(scale)
    return Case(entry.name, model.train(), inputs, entry.tags)


def optimizer(case: Case, name: Literal["sgd", "adamw"], *, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Make an optimizer over the trainable parameters of a case.

    Args:
        case: the net.
        name: ``"sgd"`` (momentum 0.9, one state tensor per parameter) or ``"adamw"`` (weight decay
            0.01, two state tensors per parameter).
        lr: step size.

    Raises:
        TightropeError: another name.
    """
    parameters = [parameter for parameter in case.model.parameters() if parameter.requires_grad]
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    raise TightropeError(f"no optimizer is called {name!r}; there are: sgd, adamw.")
