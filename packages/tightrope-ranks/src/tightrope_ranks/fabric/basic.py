"""What every node answers."""

import os

from torch import Tensor

from tightrope_ranks.fabric.registry import register


@register("tightrope.ping")
def ping() -> int:
    """Return the process of the node."""
    return os.getpid()


@register("tightrope.echo")
def echo(value: Tensor) -> Tensor:
    """Return what came."""
    return value


@register("tightrope.fetch")
def fetch(value: Tensor | None) -> Tensor | None:
    """Return a tensor that was kept: handles arrive as what they stand for."""
    return value
