"""Let a graph cast a weight once, as autocast does in eager, and sum its gradients before they are cast back.

Autocast remembers the casts of weights until it ends. torch's tracing does not: a weight that is used k
times is cast k times there, and its gradients are cast back one by one and summed in 32 bits.

    eager      w -> cast -> uses          gradients -> sum in 16 bits -> cast back
    traced     w -> cast, cast -> uses    gradients -> cast back, each -> sum in 32 bits
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.fx

from tightrope.capture.relay import Layout, relay
from tightrope.capture.typed import tensor_of

_CAST: Final = torch.ops.aten._to_copy.default
_ADD: Final = torch.ops.aten.add.Tensor
_NARROW: Final = (torch.bfloat16, torch.float16)


def remembers_casts(module: torch.fx.GraphModule) -> bool:
    """Tell whether autocast, where it is on in a call that Dynamo captured, remembers casts all along."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return torch.is_autocast_cache_enabled()
    depth = num_outermost = 0
    for node in module.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            num_outermost += depth == 0
            depth += 1
            if len(node.args) > 3 and node.args[3] is False:
                return False
        depth -= name == "_exit_autocast"
    return num_outermost <= 1


def share_casts(joint: torch.fx.GraphModule, num_forward_outputs: int, *, remembered: bool) -> list[str]:
    """Rewrite a joint graph in place; name the casts of weights that stay one per use.

    Args:
        joint: inputs, then tangents; its outputs are those of the forward, then a gradient per input.
        num_forward_outputs: of the first kind.
        remembered: whether autocast remembers its casts.

    Returns:
        Names of casts whose gradients eager may sum in another way.
    """
    graph = joint.graph
    (output,) = graph.find_nodes(op="output")
    results: list[Any] = list(output.args[0])
    left = []
    shared: dict[str, dict[int, Layout]] = {}
    for at, given in enumerate(graph.find_nodes(op="placeholder")):
        place = num_forward_outputs + at
        casts = [user for user in given.users if _is_cast(user)]
        if len(casts) < 2 or place >= len(results) or not isinstance(results[place], torch.fx.Node):
            continue
        parts = _parts(results[place])
        same = len({tensor_of(cast).dtype for cast in casts}) == 1
        if not (
            remembered and same and len(parts) == len(casts) and all(_is_cast_back(part) for part in parts)
        ):
            left += [cast.name for cast in casts]
            continue
        first, *others = casts
        for cast in others:
            cast.replace_all_uses_with(first)
        results[place] = _cast_back(graph, results[place])
        value = tensor_of(first)
        shared[first.name] = {-1: (value.dtype, tuple(value.stride()), value.storage_offset())}
    output.args = (tuple(results),)
    if shared:  # views of a cast look into another one now
        relay(graph, shared)
    return left


def _is_cast(node: torch.fx.Node) -> bool:
    backward = node.meta.get("partitioner_tag") == "is_backward"
    if node.target is not _CAST or backward or set(node.kwargs) != {"dtype"}:
        return False
    source: torch.fx.Node = node.all_input_nodes[0]
    return tensor_of(node).dtype in _NARROW and tensor_of(source).dtype == torch.float32


def _is_cast_back(node: torch.fx.Node) -> bool:
    return node.target is _CAST and tensor_of(node.all_input_nodes[0]).dtype in _NARROW


def _parts(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """What was summed up to a gradient, in order."""
    if node.target is not _ADD or len(node.users) != 1 or node.kwargs:
        return [node]
    return [part for source in node.all_input_nodes for part in _parts(source)]


def _cast_back(graph: torch.fx.Graph, total: torch.fx.Node) -> torch.fx.Node:
    """Sum what was cast back, then cast the sum."""
    (part, *_) = _parts(total)
    narrow = _narrow_sum(graph, total)
    with graph.inserting_after(total):
        made = graph.call_function(_CAST, (narrow,), dict(part.kwargs))
    made.meta = dict(total.meta)
    made.meta["val"] = _CAST(tensor_of(narrow), **part.kwargs)
    return made


def _narrow_sum(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    if node.target is not _ADD:
        return node.all_input_nodes[0]
    one, two = (_narrow_sum(graph, source) for source in node.args)  # type: ignore[arg-type]
    with graph.inserting_before(node):
        made = graph.call_function(_ADD, (one, two))
    made.meta = dict(node.meta)
    made.meta["val"] = _ADD(tensor_of(one), tensor_of(two))
    return made
