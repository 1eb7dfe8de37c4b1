"""Functions that nodes of the benchmark serve."""

import time
from typing import Any

from torch import Tensor

from tightrope_ranks.fabric import register, this_node

_HELD: list[Any] = []


@register("bench.touch")
def touch(handle: Any) -> float:
    value: Tensor = this_node().fetch(handle)
    return float(value[0])


@register("bench.hold")
def hold(handle: Any) -> None:
    _HELD.append(handle)


@register("bench.sleep")
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@register("bench.left")
def left() -> list[int]:
    """Tensors that are kept for handles, and bytes that are shared."""
    node = this_node()
    node.pump(lambda: False, 0.1)
    return [len(node.references), sum(peer.own.live for peer in node.peers.values())]


@register("bench.double")
def double(value: Tensor) -> Tensor:
    """Return a new tensor: what a function that computes does."""
    return value * 2
