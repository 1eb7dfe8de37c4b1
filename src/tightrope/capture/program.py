"""A captured program: the graph of storages and the way back to what torch runs.

`Program` pairs a `core.Graph` with the calls behind its ops. The graph is all that planners and
judges see; the calls are all that the executor needs besides a schedule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from tightrope.core import Graph, OpId, StorageId


@dataclass(frozen=True, slots=True)
class Call:
    """One callable with arguments in terms of graph nodes.

    Attributes:
        target: the function to run.
        args: positional arguments; `torch.fx.Node` stands for a tensor.
        kwargs: keyword arguments likewise.
        results: nodes that name the results: ``{None: node}`` for a single tensor, else
            ``{position: node}`` for the used members of a tuple.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: dict[int | None, torch.fx.Node]


@dataclass(frozen=True)
class Program:
    """A graph of storages together with the calls behind it.

    Attributes:
        graph: the storages and ops.
        module: owner of ``get_attr`` constants.
        calls: one per op id, replays included; None for the op that returns control to the user.
        views: view nodes with their call; run again wherever they are needed, at no bytes.
        storage_of: tensor node -> storage.
        roots: storage -> the node that is its root tensor.
        placeholders: in calling order.
        outputs: what the program returns; nodes, None or plain values.
        num_forward_outputs: how many of ``outputs`` are returned at the boundary.
        user_outputs: indices of forward outputs that the user keeps (others are written back to
            mutated inputs and released at once).
    """

    graph: Graph
    module: torch.fx.GraphModule
    calls: dict[OpId, Call | None]
    views: dict[torch.fx.Node, Call]
    storage_of: dict[torch.fx.Node, StorageId]
    roots: dict[StorageId, torch.fx.Node]
    placeholders: tuple[torch.fx.Node, ...]
    outputs: tuple[Any, ...]
    num_forward_outputs: int
    user_outputs: frozenset[int] = field(default_factory=frozenset)

    def constant(self, node: torch.fx.Node) -> torch.Tensor:
        """Look up the tensor behind a ``get_attr`` node."""
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        assert isinstance(value, torch.Tensor)
        return value


def tensor_of(node: torch.fx.Node) -> Any:
    """The fake value of a node (a tensor, a tuple of tensors, or something else)."""
    return node.meta.get("val")
