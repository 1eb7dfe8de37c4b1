"""The captured graph of a net: its ops with the user's lines, noises of inference, all values at once.

Source      SysNoise (Wang et al., 2021): ceil or floor in pooling, upsampling, offset of boxes
Guarantee   Ops are functional after capture, so that every value can be returned with the others.
Gaps        Boxes are found where a width is x2 - x1 of one tensor with four columns, and nowhere else.
"""

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, fx, nn

from tightrope.core import CaptureError
from tightrope_differ.lines import line_of

Call: TypeAlias = Callable[[Tensor], Any]
"""A net that runs: batch -> what it returns."""
_ATEN: Final = torch.ops.aten
_NEAREST, _BILINEAR = _ATEN.upsample_nearest2d.vec, _ATEN.upsample_bilinear2d.vec


def line_of_node(node: fx.Node) -> str:
    """Find the user's line that asked for a node."""
    return line_of(node.meta.get("stack_trace") or "")


def op_of(node: fx.Node) -> str:
    """Name what a node does, and in which module."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    where = f" in {modules[-1][0]}" if modules and modules[-1][0] else ""
    made = node.args[0] if node.target is operator.getitem else node
    return str(getattr(made, "target", node.target)).removesuffix(".default") + where


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
        first = " ".join(str(error).strip().splitlines()[:1])
        raise CaptureError(f"the net is not one graph: {type(error).__name__}: {first}") from error
    return made


def values_of(graph: fx.Graph) -> list[fx.Node]:
    """List the nodes that compute a tensor, in order."""
    computed = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in computed if isinstance(node.meta.get("val"), Tensor)]


def returning(module: fx.GraphModule, nodes: list[fx.Node]) -> fx.GraphModule:
    """Copy a graph so that it returns the values of these nodes: one as itself, several as a tuple."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    found = tuple(copies[node] for node in nodes)
    graph.output(found if len(found) > 1 else found[0])
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _ceil(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    names = [one.name for one in schema.arguments] if schema else []
    if "ceil_mode" not in names:
        return False
    if (at := names.index("ceil_mode")) < len(node.args):
        node.update_arg(at, not node.args[at])
    else:
        node.update_kwarg("ceil_mode", not node.kwargs.get("ceil_mode", False))
    return True


def _upsample(node: fx.Node) -> bool:
    if node.target not in (_NEAREST, _BILINEAR):
        return False
    x, size, *_, scale = node.args
    if node.target is _NEAREST:
        node.target, node.args = _BILINEAR, (x, size, False, scale)
    else:
        node.target, node.args = _NEAREST, (x, size, scale)
    return True


def _columns(node: Any) -> tuple[Any, Tensor]:
    """Tell which columns of which boxes a node holds: the views of it are taken of the numbers of columns."""
    views: list[Any] = []
    found = node, torch.empty(0)
    while isinstance(node, fx.Node) and node.target in (_ATEN.select.int, _ATEN.slice.Tensor):
        views, node = [node, *views], node.args[0]
        shape = node.meta["val"].shape
        if shape[-1] == 4:
            held = torch.arange(4.0).expand(shape)
            for view in views:
                held = view.target(held, *view.args[1:])
            found = node, held
    return found


def _box_offset(node: fx.Node) -> bool:
    if node.target is not _ATEN.sub.Tensor:
        return False
    (boxes, far), (others, near) = map(_columns, node.args[:2])
    if boxes is not others or not far.numel() or not torch.equal(far, near + 2):
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


def with_noise(module: fx.GraphModule, name: str) -> tuple[fx.GraphModule, str]:
    """Copy a graph and change every op that a noise is about; give it with the user's lines of these ops."""
    made = copy.deepcopy(module)
    changed = [node for node in list(made.graph.nodes) if GRAPH_NOISES[name](node)]
    made.recompile()
    return made, ", ".join(dict.fromkeys(line_of_node(node) or node.name for node in changed))
