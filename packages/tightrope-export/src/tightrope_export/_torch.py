"""Private names of torch, and what it says of an op."""

from typing import Final

import torch
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

IGNORED: Final = frozenset({"aten.detach.default", "prim.device.default"})
"""Ops that a selective policy is never shown: torch makes another number of them when it recomputes."""


def running_node() -> int:
    """Number of the node of autograd that is running, -1 where none is."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())
