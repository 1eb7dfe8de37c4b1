"""Let the backward of convolutional nets hold less at once.

Idea        Three rewrites of a captured graph.
            One: ``convolution_backward`` makes the gradients of weight and input in one call, so that the
            input and both gradients are held together. Two calls, the weight's first, hold the input only
            while the gradient of the weight is made: the other kernel reads nothing of it but its shape.
            Two: the backward of a maximum pool reads nothing of its input but its shape either.
            Three: the gradient of a concatenation is one tensor, looked at in pieces. A piece that is read
            much later than the others keeps all of them, so it is copied into memory of its own.
Source      the kernels that torch has on a CPU
Guarantee   The same kernels on the same values: the same bits (`tests/capture/test_capture_frugal.py`). A
            piece is copied only where its readers compute the same from a copy.
Complexity  Linear in the nodes and their readers.
Gaps        CPU only: kernels of other devices may share work between both gradients, or read more.

    one call    input, gradient -> gradients of input, weight, bias
    two calls   input, gradient -> gradients of weight, bias;   weight, gradient -> gradient of input
"""

from typing import Any, Final

import torch
import torch.fx

from tightrope.capture.typed import tensor_of
from tightrope.capture.variants import KERNEL, members
from tightrope.price.gradients import convolution_input, max_pool_input

_aten = torch.ops.aten
_CONVOLUTION: Final = _aten.convolution_backward.default
_POOL: Final = _aten.max_pool2d_with_indices_backward.default
_SLICE: Final = _aten.slice.Tensor
_MASK: Final = 10
"""Position of the mask among the arguments of a convolution's backward."""
_FLOATS: Final = (torch.float32, torch.float64, torch.bfloat16)
_POINTWISE: Final = frozenset(
    getattr(_aten, name).default
    for name in ("threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward")
) | {_aten.add.Tensor, _aten.mul.Tensor}
"""Readers for which it is one whether a tensor is dense or a piece of another."""
_LATE: Final = 8
"""Ops between readers of two pieces from which on a copy is worth its time."""
_LEAST_BYTES: Final = 1 << 12


def hold_less(graph: torch.fx.Graph) -> None:
    """Rewrite a captured graph in place.

    Args:
        graph: of a backward, or of all of a step; with fake results under ``val``.
    """
    for node in list(graph.nodes):
        if node.target is _CONVOLUTION and _on_cpu(node):
            _part(graph, node)
        elif node.target is _POOL and _on_cpu(node):
            node.args = (node.args[0], *_look(node), *node.args[2:])
            node.meta[KERNEL] = max_pool_input
    place = {node: position for position, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if "getitem" in str(node.target):
            _copy_late_pieces(graph, node, place)


def _input(node: torch.fx.Node) -> torch.Tensor:
    """What is known of the input of a convolution or a pool, the second argument of its backward."""
    given: Any = node.args[1]
    found: torch.Tensor = tensor_of(given)
    return found


def _on_cpu(node: torch.fx.Node) -> bool:
    given = _input(node)
    return given.device.type == "cpu" and given.dtype in _FLOATS


def _look(node: torch.fx.Node) -> tuple[list[int], list[int]]:
    given = _input(node)
    return [int(size) for size in given.shape], [int(stride) for stride in given.stride()]


def _part(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Call once for weight and bias, and once for the input, as far as both are wanted."""
    arguments: tuple[Any, ...] = node.args
    gradient, _, weight, _, *geometry = arguments[:_MASK]
    picked, mask = members(node), arguments[_MASK]
    if not mask[0] or 0 not in picked or geometry[3]:  # transposed
        return
    if mask[1] or mask[2]:
        with graph.inserting_before(node):
            rest = graph.call_function(_CONVOLUTION, (*arguments[:_MASK], [False, mask[1], mask[2]]))
        rest.meta = _told(node, (False, mask[1], mask[2]))
        for position, member in picked.items():
            if position:
                member.update_arg(0, rest)
                rest.append(member)
    with graph.inserting_before(node):
        alone = graph.call_function(_CONVOLUTION, (gradient, weight, *_look(node), *geometry))
    alone.meta = _told(node, (True, False, False)) | {KERNEL: convolution_input}
    picked[0].update_arg(0, alone)
    graph.erase_node(node)


def _told(node: torch.fx.Node, mask: tuple[Any, ...]) -> dict[str, Any]:
    """What is known of a node, of whose results some are wanted."""
    values = (value if wanted else None for value, wanted in zip(node.meta["val"], mask, strict=True))
    return {**node.meta, "val": tuple(values)}


def _copy_late_pieces(graph: torch.fx.Graph, node: torch.fx.Node, place: dict[torch.fx.Node, int]) -> None:
    """Copy the pieces of a result that are read long after the others."""
    pieces = list(node.users)
    if len(pieces) < 2 or any(piece.target is not _SLICE or not piece.users for piece in pieces):
        return
    if any(reader not in place for piece in pieces for reader in piece.users):
        return
    first = {piece: min(place[reader] for reader in piece.users) for piece in pieces}
    soon = min(first.values())
    for piece in pieces:
        value = tensor_of(piece)
        large = value.device.type == "cpu" and value.numel() * value.element_size() >= _LEAST_BYTES
        plain = all(reader.target in _POINTWISE for reader in piece.users)
        if first[piece] < soon + _LATE or not large or not plain:
            continue
        with graph.inserting_after(piece):
            copy = graph.call_function(_aten.clone.default, (piece,))
        for reader in list(piece.users):
            if reader is not copy:
                reader.replace_input_with(piece, copy)
        copy.meta = {**piece.meta, "val": value.clone()}
