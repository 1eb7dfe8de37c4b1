"""Recurrent nets as eager runs them on a CPU: layers of an LSTM, and cells of a GRU.

A layer of an LSTM is one oneDNN kernel per direction. What a trace is told of those kernels leaves out the
workspace that they hand to their backward, and takes the gradients of the two biases for one tensor. Both are
put right in the graph: the size of the workspace is found by one call of the kernel for each size. While
gradients are wanted the kernel is called in grad mode, as in eager, since that is what it asks before it
makes a workspace.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

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


def gru_cell(
    given: torch.Tensor,
    hidden: torch.Tensor,
    from_given: torch.Tensor,
    from_hidden: torch.Tensor,
    *biases: torch.Tensor | None,
) -> torch.Tensor:
    """Record a cell whose gates are columns of one tensor, as they are in eager, which writes them in place.

    A trace would put each gate in a tensor of its own. The last bits of a sigmoid depend on that.
    """
    width = hidden.shape[-1]
    ours, theirs = (*biases, None, None)[:2]
    sizes, linear = [2 * width, width], torch.nn.functional.linear
    gates, new = torch.unsafe_split_with_sizes(linear(given, from_given, ours), sizes, 1)
    more, old = torch.unsafe_split_with_sizes(linear(hidden, from_hidden, theirs), sizes, 1)
    reset, update = (one.sigmoid() for one in torch.unsafe_split(more + gates, width, 1))
    wanted = (new + old * reset).tanh()
    return (hidden - wanted) * update + wanted


def _of_size(size: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(size)


def _workspace_size(node: torch.fx.Node) -> int:
    """Return what is known of such a call, which a backward that is pending may leave no room to make."""

    def told(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            like = tensor_of(value)
            return _Like(tuple(like.shape), like.dtype)
        return tuple(value) if isinstance(value, list | tuple) else value

    return _found_size(tuple(map(told, node.args)))


class _Like(NamedTuple):
    """What a made-up tensor is like."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@cache
def _found_size(args: tuple[Any, ...]) -> int:
    """Run the kernel once on made-up tensors."""
    with _torch.real_tensors():
        given = [torch.zeros(one.shape, dtype=one.dtype) if isinstance(one, _Like) else one for one in args]
        return int(lstm_layer(*given)[_WORKSPACE].numel())


def _retell(node: torch.fx.Node, position: int, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace what is known of one result of a node."""
    results = list(tensor_of(node))
    results[position] = make(results[position])
    node.meta["val"] = tuple(results)
    if position in (users := members(node)):
        users[position].meta["val"] = results[position]
