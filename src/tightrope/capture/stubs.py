"""Two modules that AOTAutograd takes for a forward and its backward; they pass one token and never run."""

from itertools import zip_longest
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.typed import tensor_of
from tightrope.core import CaptureError


def flat(module: torch.fx.GraphModule) -> list[Any]:
    """List what a graph returns."""
    (output,) = module.graph.find_nodes(op="output")
    return list(output.args[0])


def never(*_: Any) -> Any:
    """Stand for code that must not run."""
    raise CaptureError("a stub module was run: the compiled callables must replace it.")


def stubs(
    joint: torch.fx.GraphModule, num_forward_outputs: int, *, some: bool = False
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Two modules with the right signature whose only saved value is the token.

    Where the backward starts from ``some`` outputs alone, any input may have a gradient once others are read.
    """
    forward, backward = torch.fx.Graph(), torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        if not str(node.target).startswith("tangents"):
            copies[node] = _placeholder(forward, node)
    outputs = flat(joint)[: num_forward_outputs + len(copies)]
    results = [_result(forward, node, copies) for node in outputs[:num_forward_outputs]]
    # No "val": AOTAutograd donates fake tensors to one backward, and torch 2.14 counts no others as saved.
    token = forward.call_function(never, ())
    _output(forward, joint, [*results, token], slice(0, num_forward_outputs))

    with _torch.real_tensors():
        backward.placeholder("token").meta["val"] = torch.empty(0)
    for node in joint.graph.find_nodes(op="placeholder"):
        if str(node.target).startswith("tangents"):
            _placeholder(backward, node)
    gradients = [
        _result(backward, given if some and node is None else node, {})
        for node, given in zip_longest(outputs[num_forward_outputs:], copies)
    ]
    _output(backward, joint, gradients, slice(num_forward_outputs, None))
    return torch.fx.GraphModule(joint, forward), torch.fx.GraphModule(joint, backward)


def _placeholder(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.placeholder(str(node.target))
    copy.meta = dict(node.meta)
    return copy


def _result(graph: torch.fx.Graph, node: Any, copies: dict[torch.fx.Node, torch.fx.Node]) -> Any:
    if not isinstance(node, torch.fx.Node) or node in copies:
        return copies.get(node) if isinstance(node, torch.fx.Node) else node
    stub = graph.call_function(never, ())
    stub.meta["val"] = tensor_of(node)
    if "tensor_meta" in node.meta:
        stub.meta["tensor_meta"] = node.meta["tensor_meta"]
    return stub


def _output(graph: torch.fx.Graph, joint: torch.fx.GraphModule, results: list[Any], part: slice) -> None:
    (old,) = joint.graph.find_nodes(op="output")
    new = graph.output(tuple(results))
    if old.meta.get("desc") is not None:
        descriptions = list(old.meta["desc"])[part]
        new.meta["desc"] = descriptions + [None] * (len(results) - len(descriptions))
