"""What a family is: a few lines that make a model, the inputs of a step, and its loss."""

import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

Given = dict[str, Any]


class Made(NamedTuple):
    """A model in training mode, the inputs of a step by its number, and the loss of the step."""

    model: nn.Module
    inputs: Callable[[int], Given]
    loss: Callable[[Any, Given], Tensor]


class Family(NamedTuple):
    """A way to make a model, and the package that it needs."""

    make: Callable[[], Made]
    package: str


FAMILIES: Final[dict[str, Family]] = {}  # by name; the other modules of this folder fill it


def family(package: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """List a function under its own name."""

    def listed(make: Callable[[], Made]) -> Callable[[], Made]:
        FAMILIES[make.__name__] = Family(make, package)
        return make

    return listed


def hash_of(name: str) -> str:
    """A hash of a name, which orders the list."""
    return hashlib.sha256(name.encode()).hexdigest()


def is_kept(name: str) -> bool:
    """Whether the hash of a name puts it in the half that nobody tunes for."""
    return int(hash_of(name)[-1], 16) % 2 == 1


def library(name: str) -> Any:
    """Import a module whose types are of no concern here."""
    return import_module(name)


def ids(vocabulary: int, *shape: int) -> Tensor:
    """Tokens that are no special ones."""
    return torch.randint(3, vocabulary, shape)
