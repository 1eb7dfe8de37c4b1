"""Layers of an LSTM as eager runs them on a CPU: one oneDNN kernel per layer and direction.

What a trace is told of those kernels leaves out the workspace that they hand to their backward, and takes
the gradients of the two biases for one tensor. Both are put right in the graph: the size of the workspace
is found by one call of the kernel. While gradients are wanted the kernel is called in grad mode, as in
eager, since that is what it asks before it makes a workspace.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.typed import tensor_of
from tightrope.capture.variants import KERNEL, members
from tightrope.price.kernels import lstm_layer

_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_WORKSPACE, _SECOND_BIAS = 3, 4
"""Positions in the results of the layer and of its backward."""


def layers_as_eager(graph: torch.fx.Graph) -> None:
    """Let the layers of LSTMs make what eager's kernels make; the backward of each is in the graph."""
    for node in graph.find_nodes(op="call_function", target=_LAYER):
        node.meta[KERNEL] = lstm_layer
        _retell(node, _WORKSPACE, partial(_of_size, _workspace_size(node)))
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        _retell(node, _SECOND_BIAS, torch.empty_like)


def _of_size(size: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(size)


def _workspace_size(node: torch.fx.Node) -> int:
    """Run the kernel once on made-up tensors."""

    def made(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        like = tensor_of(value)
        with _torch.real_tensors():
            return torch.zeros(tuple(like.shape), dtype=like.dtype)

    given = [made(value) for value in node.args]
    with _torch.real_tensors():
        return int(lstm_layer(*given)[_WORKSPACE].numel())


def _retell(node: torch.fx.Node, position: int, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace what is known of one result of a node."""
    results = list(tensor_of(node))
    results[position] = make(results[position])
    node.meta["val"] = tuple(results)
    if position in (users := members(node)):
        users[position].meta["val"] = results[position]
