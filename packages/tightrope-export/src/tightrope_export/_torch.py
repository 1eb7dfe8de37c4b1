"""Private names of torch: the mode that sees every op, and what it says of an op."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

from tightrope.capture._torch import is_random as is_random

IGNORED: Final = frozenset({"aten.detach.default", "prim.device.default"})
"""Ops that a selective policy is never shown: torch makes another number of them when it recomputes."""


class StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows every op that runs in a ``with`` block, before and after it."""

    def __init__(self, before: Callable[[], None], after: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before, self._after = before, after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and show it."""
        self._before()
        result = func(*args, **(kwargs or {}))
        self._after(func, args, kwargs or {}, result)
        return result


def running_node() -> int:
    """Number of the node of autograd that is running, -1 where none is."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())
