"""The captured graph of a net: its ops with the user's lines, noises of inference, all values at once.

Source      SysNoise (Wang et al., 2021): ceil or floor in pooling, upsampling, offset of boxes
Guarantee   Ops are functional after capture, so that every value can be returned with the others.
Gaps        Boxes are found where a width is x2 - x1 of one tensor with four columns, and nowhere else.
"""

import copy
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn

from tightrope.core import CaptureError
from tightrope_differ.images.places import is_foreign, short

Call: TypeAlias = Callable[[Tensor], Any]
"""A net that runs: batch -> what it returns."""
_ATEN: Final = torch.ops.aten
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_CEIL: Final[dict[Any, int]] = {
    _ATEN.max_pool1d.default: 5,
    _ATEN.max_pool2d.default: 5,
    _ATEN.max_pool3d.default: 5,
    _ATEN.avg_pool1d.default: 4,
    _ATEN.avg_pool2d.default: 4,
    _ATEN.avg_pool3d.default: 4,
}
"""Position of ``ceil_mode``."""
_AFTER: Final[dict[int, tuple[Any, ...]]] = {5: ([], 0, 1, False), 4: ([], 0, False)}
_WHOLE: Final = (0, 2**63 - 1)


class LocatedOp(NamedTuple):
    """An op of a captured graph: its name, what it does, and the user's line."""

    name: str
    op: str
    line: str


def line_of(trace: str) -> str:
    """Find the user's innermost line in a stack trace; empty where no file of it is the user's."""
    mine = [(file, line) for file, line in _FRAME.findall(trace or "") if not is_foreign(file)]
    return f"{short(mine[-1][0])}:{mine[-1][1]}" if mine else ""


def capture_net(net: nn.Module, example: Tensor) -> fx.GraphModule:
    """Capture a net at one batch as a graph of functional ops.

    Raises:
        CaptureError: it is not one graph.
    """
    try:
        with torch.no_grad():
            program = torch.export.export(net.eval(), (example,)).run_decompositions({})
        made: fx.GraphModule = program.module(check_guards=False)
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        raise CaptureError(f"the net is not one graph: {type(error).__name__}: {' '.join(first)}") from error
    return made


def located(node: fx.Node) -> LocatedOp:
    """Tell where a node comes from."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    where = f" in {modules[-1][0]}" if modules and modules[-1][0] else ""
    made = node.args[0] if node.target is operator.getitem else node
    target = str(getattr(made, "target", node.target)).removesuffix(".default")
    return LocatedOp(node.name, f"{target}{where}", line_of(node.meta.get("stack_trace", "")))


def values_of(graph: fx.Graph) -> list[fx.Node]:
    """List the nodes that compute a tensor, in order."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
    ]


def returning(module: fx.GraphModule, nodes: list[fx.Node]) -> fx.GraphModule:
    """Copy a graph so that it returns the values of these nodes: one as itself, several as a tuple."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    for node in [one for one in graph.nodes if one.op == "output"]:
        graph.erase_node(node)
    found = tuple(copies[node] for node in nodes)
    graph.output(found if len(found) > 1 else found[0])
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _ceil(node: fx.Node) -> bool:
    at = _CEIL.get(node.target)
    if at is None:
        return False
    given: tuple[Any, ...] = node.args
    args = [*given, *_AFTER[at][len(given) - 2 :]] if len(given) > 1 else [*given]
    args[at] = not args[at]
    node.args = tuple(args)
    return True


def _upsample(node: fx.Node) -> bool:
    if node.target is _ATEN.upsample_nearest2d.vec:
        x, size, scale = node.args
        node.target, node.args = _ATEN.upsample_bilinear2d.vec, (x, size, False, scale)
    elif node.target is _ATEN.upsample_bilinear2d.vec:
        x, size, _, scale = node.args
        node.target, node.args = _ATEN.upsample_nearest2d.vec, (x, size, scale)
    else:
        return False
    return True


def _columns(node: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Tell which of four columns of which boxes a node takes."""
    if not isinstance(node, fx.Node) or node.target not in (_ATEN.select.int, _ATEN.slice.Tensor):
        return None
    args: tuple[Any, ...] = node.args
    source, dim, *rest = args
    shape = source.meta["val"].shape
    if shape[-1:] != (4,) or dim % len(shape) != len(shape) - 1:
        return None
    taken = range(4)[slice(*rest[:2])] if node.target is _ATEN.slice.Tensor else (rest[0] % 4,)
    while source.target is _ATEN.slice.Tensor and tuple(source.args[2:4]) == _WHOLE:  # rows of x[:, 2]
        source = source.args[0]
    return source, tuple(taken)


def _box_offset(node: fx.Node) -> bool:
    if node.target is not _ATEN.sub.Tensor:
        return False
    far, near = map(_columns, node.args[:2])
    if far is None or near is None or far[0] is not near[0] or [c - 2 for c in far[1]] != [*near[1]]:
        return False
    with node.graph.inserting_after(node):
        wider = node.graph.call_function(_ATEN.add.Tensor, (node, 1.0))
    node.replace_all_uses_with(wider, delete_user_cb=lambda user: user is not wider)
    wider.meta = dict(node.meta)
    return True


GRAPH_NOISES: Final[Mapping[str, Callable[[fx.Node], bool]]] = {
    "pool-ceil": _ceil,
    "upsample": _upsample,
    "box-offset": _box_offset,
}
"""Each changes a node that it is about, and tells whether it was."""


def with_noise(module: fx.GraphModule, name: str) -> fx.GraphModule:
    """Copy a graph and change every op that a noise is about; ``meta["changed"]`` has the user's lines."""
    made = copy.deepcopy(module)
    changed = [node for node in list(made.graph.nodes) if GRAPH_NOISES[name](node)]
    made.recompile()
    made.meta["changed"] = ", ".join(dict.fromkeys(located(node).line or node.name for node in changed))
    return made


def tensors_of(result: Any) -> tuple[Tensor, ...]:
    """List the tensors that a net returned, in order.

    Raises:
        CaptureError: it returned something else.
    """
    if isinstance(result, Tensor):
        return (result,)
    parts = list(result.values()) if isinstance(result, Mapping) else result
    if isinstance(parts, list | tuple) and parts and all(isinstance(one, Tensor) for one in parts):
        return tuple(parts)
    raise CaptureError(f"the net returned a {type(result).__name__}: return a tensor or a tuple of tensors.")
