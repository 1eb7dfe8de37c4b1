"""Backward passes that are still to come from what calls returned, and what failed ones leave."""

import weakref
from typing import Any

import torch

from tightrope.capture._eager import tensors_in


class _Outstanding:
    """A backward pass that did not begin yet; its hooks keep this alive, and nothing else does."""

    __slots__ = ("__weakref__", "came")

    def __init__(self) -> None:
        self.came = False

    def arrived(self, _: torch.Tensor) -> None:
        self.came = True


def drain_failed() -> None:
    """Free what a failed backward pass left in autograd's queue: it stays there until the next one."""
    with torch.enable_grad():
        torch.zeros((), requires_grad=True).backward()  # type: ignore[no-untyped-call]


class Awaited:
    """What was returned and may have a backward pass yet; what its caller let go of has none."""

    def __init__(self) -> None:
        self._waiting: list[weakref.ref[_Outstanding]] = []

    def expect(self, result: Any) -> None:
        """Await a backward pass from whatever a call returned that has a graph."""
        outstanding = _Outstanding()
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                tensor.register_hook(outstanding.arrived)  # type: ignore[no-untyped-call]
        self._waiting = [ref for ref in self._waiting if (one := ref()) is not None and not one.came]
        self._waiting.append(weakref.ref(outstanding))

    @property
    def all_came(self) -> bool:
        """Whether none is outstanding."""
        return all((one := ref()) is None or one.came for ref in self._waiting)

    def clear(self) -> None:
        """Await nothing any more."""
        self._waiting = []
