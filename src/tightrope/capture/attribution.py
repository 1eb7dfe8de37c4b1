"""Where a node of a captured graph comes from: module path and source line."""

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from types import FunctionType
from typing import Any, Final

import torch.fx

from tightrope.core import Phase

MAX_FRAMES: Final = 8
"""Lines that are kept of a call stack."""
_OWN = PurePath(__file__).parents[1]
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_ROOT = re.compile(r"^[LG]\['\w+'\](?:\.__closure__\.\d+\.cell_contents)?\.?")
_MODULE = re.compile(r"\._modules\['([^']+)'\]|\[(\d+)\]")

_PASS_ON = frozenset({"add", "clone", "own_gradient"})
"""Sums and copies of gradients, for which torch notes no module."""


def module_paths(
    graph: torch.fx.Graph, phase_of: Callable[[torch.fx.Node], Phase]
) -> dict[torch.fx.Node, str]:
    """Name the innermost module of every call of a graph, e.g. ``transformer.h.3.mlp``.

    Backward nodes carry their forward's module. Where torch notes none, a sum or copy of gradients goes
    to the module around those that made them, and the backward of an op that wrote in place to the op.
    What is left ran outside every module: it belongs to the root, the empty string.

    Args:
        graph: as captured; calls only.
        phase_of: the phase of a node.
    """
    found: dict[torch.fx.Node, str] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            path = _noted(node)
            if path is None and phase_of(node) is Phase.BACKWARD:
                path = _inherited(node, found)
            found[node] = path or ""
    return found


def target_name(target: object) -> str:
    """Name what a node calls, the same in every process.

    Example:
        >>> import torch
        >>> target_name(torch.ops.aten.add.Tensor), target_name(target_name)
        ('aten.add.Tensor', 'tightrope.target_name')
    """
    if isinstance(target, FunctionType):
        return f"{target.__module__.partition('.')[0]}.{target.__name__}"
    return str(target)


def common_path(paths: Iterable[str]) -> str:
    """Find the innermost module around all paths.

    Example:
        >>> common_path(["net.h.0.attn", "net.h.0.mlp.fc"]), common_path([])
        ('net.h.0', '')
    """
    split = [path.split(".") for path in paths]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _noted(node: torch.fx.Node) -> str | None:
    """The module that torch noted, or None."""
    stack: dict[str, Any] | None = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = str(list(stack.values())[-1][0])
    path = _MODULE.sub(lambda match: "." + (match[1] or match[2]), path)
    path = _ROOT.sub("", path)
    return path.removeprefix("self.").strip(".")


def _inherited(node: torch.fx.Node, found: dict[torch.fx.Node, str]) -> str | None:
    """The module of a backward node by what it reads, or None; ``found`` has the nodes before it."""
    name = _bare(node)
    if name in _PASS_ON:
        return common_path(found[source] for source in node.all_input_nodes if source in found)
    wanted = name.removesuffix("_backward")
    if wanted == name:
        return None
    saved = [one for source in node.all_input_nodes for one in (source, *_copied(source))]
    near = (one for source in saved for one in (source, *source.users) if one in found)
    return next((found[one] for one in near if _bare(one) == wanted), None)


def _copied(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a node is a copy of: an op that writes in place saves a copy of what it read."""
    return node.all_input_nodes if _bare(node) == "clone" else []


def _bare(node: torch.fx.Node) -> str:
    """The name of what a node calls, whether or not it writes in place."""
    name = target_name(node.target)
    return (name.split(".")[1] if "." in name else name).removesuffix("_")


def source_line(node: torch.fx.Node) -> str:
    """Name the user's line that made ``node`` as ``file.py:123``, or the empty string."""
    return next(iter(source_lines(node)), "")


def source_lines(node: torch.fx.Node) -> tuple[str, ...]:
    """Name the user's lines that made ``node``: where it is, then where that was called, as ``file.py:123``.

    At most `MAX_FRAMES` of them, the nearest.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    paths = [(PurePath(file), line) for file, line in reversed(frames)]
    return tuple(f"{path.name}:{line}" for path, line in paths if not path.is_relative_to(_OWN))[:MAX_FRAMES]
