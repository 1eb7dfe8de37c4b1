"""Let the convolutions of a call work channels-last.

Idea        Where an input is read by convolutions alone, they get a copy of it that is laid out
            channels-last. Convolutions, norms, pools and what works element by element hand that layout on,
            forward and backward. Outputs and gradients are copied back to the layouts that eager gives them.
Source      the layouts that the CPU kernels of oneDNN take without a copy
Guarantee   The same ops on the same values; sums inside of a kernel may be taken in another order, so results
            are equal within rounding. What the caller hands over, and what it gets, is laid out as in eager.
Complexity  One more trace of the call.
Gaps        Inputs that something else reads too, as a normalization in the model does, stay as they are.
            Whether it is faster is measured, not foreseen; see `tightrope.run.session.fused`.
"""

import operator
from functools import partial
from typing import Any, Final

import torch
import torch.fx

from tightrope.capture.typed import tensor_of

_CONVOLUTIONS: Final = frozenset({torch.conv2d, torch.nn.functional.conv2d})
_IMAGE: Final = 4
"""Dimensions of a batch of images."""


def channels_last(module: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """Rewrite what Dynamo captured; None where no convolution reads an input alone.

    Args:
        module: with ops as the model calls them; it is not changed.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    num = 0
    for node in graph.find_nodes(op="placeholder"):
        if _is_image(node):
            with graph.inserting_after(node):
                laid_out = graph.call_method("contiguous", (node,), {"memory_format": torch.channels_last})
            node.replace_all_uses_with(laid_out, delete_user_cb=partial(operator.is_not, laid_out))
            num += 1
    if not num:
        return None
    (output,) = module.graph.find_nodes(op="output")
    graph.output(torch.fx.node.map_arg(output.args[0], lambda node: _as_in_eager(copies[node])))
    made = torch.fx.GraphModule(module, graph)
    made.meta.update(module.meta)
    return made


def gradients_as_inputs(joint: torch.fx.GraphModule, num_forward_outputs: int) -> None:
    """Copy gradients that are laid out otherwise than the dense inputs that they are of, in place."""
    (output,) = joint.graph.find_nodes(op="output")
    returned: Any = output.args[0]
    results = list(returned)
    for number, given in enumerate(joint.graph.find_nodes(op="placeholder")):
        place = num_forward_outputs + number
        if place >= len(results) or not isinstance(results[place], torch.fx.Node):
            continue
        wanted, found = tensor_of(given), tensor_of(results[place])
        if wanted.is_contiguous() and not found.is_contiguous():
            with joint.graph.inserting_before(output):
                copy = joint.graph.call_function(
                    torch.ops.aten.clone.default,
                    (results[place],),
                    {"memory_format": torch.contiguous_format},
                )
            copy.meta = {**results[place].meta, "val": found.clone(memory_format=torch.contiguous_format)}
            results[place] = copy
    output.args = (tuple(results), *output.args[1:])


def _is_image(node: torch.fx.Node) -> bool:
    """Tell whether a node is what convolutions alone read as their input."""
    given = node.meta.get("example_value")
    if not isinstance(given, torch.Tensor) or given.ndim != _IMAGE or given.device.type != "cpu":
        return False
    if given.is_contiguous(memory_format=torch.channels_last):
        return False
    readers = list(node.users)
    return bool(readers) and all(
        user.op == "call_function" and user.target in _CONVOLUTIONS and user.args[:1] == (node,)
        for user in readers
    )


def _as_in_eager(node: torch.fx.Node) -> torch.fx.Node:
    """Lay an output out as eager does, where that is known."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.ndim != _IMAGE or not value.is_contiguous():
        return node
    return node.graph.call_method("contiguous", (node,))
