"""Functions that nodes of the tests serve."""

import os
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tightrope_ranks.fabric import RemoteTensor, memory, register, this_node


@register("test.add")
def add(one: Tensor, other: Tensor | float) -> Tensor:
    return one + other


@register("test.both")
def both(one: Tensor) -> tuple[Tensor, Tensor, dict[str, int]]:
    return one[1:], one * 2, {"rows": len(one)}


@register("test.fail")
def fail() -> None:
    raise ValueError("no such thing")


def nested_tensor() -> Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


FAULTS: dict[str, Callable[[], Any]] = {
    "lone surrogate": lambda: os.fsdecode(b"\xff"),
    "surrogate inside": lambda: [torch.ones(2000), {"a": ["\ud800"]}],
    "surrogate key": lambda: {"\ud800": 1},
    "surrogate in an error": lambda: raised(ValueError("no \ud800")),
    "error without text": lambda: raised(SilentError()),
    "exit": lambda: sys.exit(3),
    "generator exit": lambda: raised(GeneratorExit()),
    "set": lambda: {1, 2},
    "nested tensor": lambda: nested_tensor(),
}


def raised(error: BaseException) -> None:
    raise error


@register("test.fault")
def fault(kind: str) -> Any:
    return FAULTS[kind]()


@register("test.zero_and_keep")
def zero_and_keep(one: Tensor, other: Tensor, inside: list[Tensor]) -> tuple[Tensor, Tensor]:
    _GIVEN.append(other)
    one.zero_()
    inside[0].zero_()
    return other, other


@register("test.sleep")
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@register("test.wait_for")
def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


@register("test.ask")
def ask(node: int, name: str, *arguments: Any) -> Any:
    return this_node().call(node, name, *arguments)


@register("test.sum_of")
def sum_of(handle: Any) -> float:
    value = this_node().fetch(handle) if isinstance(handle, RemoteTensor) else handle
    return float(value.sum())


_GIVEN: list[Tensor] = []


@register("test.keep_and_return")
def keep_and_return(one: Tensor, drop: bool = False) -> tuple[Tensor, Tensor]:
    _GIVEN.append(one)
    found = one[3:], one[:-5]
    if drop:
        _GIVEN.clear()
    return found


@register("test.given")
def given() -> list[float]:
    return [float(one.sum()) for one in _GIVEN]


@register("test.zero")
def zero(one: Tensor) -> Tensor:
    return one.zero_()


_SLOTS: dict[int, Tensor] = {}


def changed(slots: dict[int, Tensor], kind: str, slot: int, one: Tensor) -> Tensor:
    """Do one of the things that functions do with what they are given and keep."""
    match kind:
        case "keep":
            slots[slot] = one[1:]
        case "swap":
            one, slots[slot] = slots.get(slot, one), one
        case "add":
            one.add_(1)
        case "new":
            one = one * 2
        case "clear":
            slots.clear()
    return one


@register("test.change")
def change(kind: str, slot: int, one: Tensor) -> Tensor:
    return changed(_SLOTS, kind, slot, one)


@register("test.unsendable")
def unsendable(one: Tensor) -> tuple[Tensor, Tensor, object]:
    return one, one * 2, object()


@register("test.kept")
def kept() -> list[int]:
    node = this_node()
    node.pump(lambda: False, 0.1)
    return [len(node.references), sum(peer.own.live for peer in node.peers.values())]


@register("test.pages")
def pages() -> list[int]:
    return [len(memory._PAGES), sum(page.nbytes for page in memory._PAGES.values())]


@register("test.linear")
def linear(seed: int, *widths: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*(one for layer in layers for one in (layer, nn.Tanh())))


@register("test.table")
def table(seed: int, rows: int, width: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.EmbeddingBag(rows, width, mode="sum")


@register("test.total")
def total(ones: list[Tensor]) -> float:
    return sum(float(one.double().sum()) for one in ones)


@register("test.flood")
def flood(node: int, seed: int, num: int, most: int) -> int:
    from test_fabric_flood import flood as begin_all

    return begin_all(this_node(), node, seed, num, most)


@register("test.nested")
def nested(given: dict[str, Any]) -> dict[str, Any]:
    small, inner = given["a"]
    (kept,) = given["h"]
    return {"double": [small * 2, {"same": inner["b"]}], "handle": kept, "n": inner["n"]}


@register("test.zero_all")
def zero_all(ones: list[Tensor]) -> list[Tensor]:
    return [one.zero_() for one in ones]


@register("test.fail_with")
def fail_with(given: Any) -> None:
    raise ValueError(f"no such thing in {len(given)}")


@register("test.refused")
def refused() -> list[int]:
    return [peer.refused for peer in this_node().peers.values()]
