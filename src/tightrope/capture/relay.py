"""Other layouts for results of a captured graph, and what follows from them."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import torch
import torch.fx

from tightrope.capture.variants import KERNEL

Layout: TypeAlias = tuple[torch.dtype, tuple[int, ...], int]
"""(Dtype, strides in elements, offset in elements)."""

_CONTIGUOUS: Final[dict[str, Any]] = {"memory_format": torch.contiguous_format}


def relay(graph: torch.fx.Graph, layouts: Mapping[str, Mapping[int, Layout]]) -> None:
    """Give results of nodes other dtypes, strides and offsets, and derive everything behind them again.

    What a kernel of this package makes in a node's place stays: the target may not take its arguments.
    What can be no view any more becomes one of a copy, as `reshape` makes in eager.

    Args:
        graph: with fake values under ``val``, which are replaced.
        layouts: by name of the node and position in its result (-1 = the result itself).
    """
    mode = next(
        node.meta["val"].fake_mode for node in graph.nodes if hasattr(node.meta.get("val"), "fake_mode")
    )
    changed: set[torch.fx.Node] = set()
    for node in graph.nodes:
        wanted = layouts.get(node.name, {})
        if node.op != "call_function" or not (wanted or changed.intersection(node.all_input_nodes)):
            continue
        with mode, torch.no_grad():
            value = node.meta["val"] if KERNEL in node.meta else _derived(node)
            items = list(value) if isinstance(value, tuple | list) else [value]
            for position, (dtype, strides, offset) in wanted.items():
                shape = items[max(position, 0)].shape
                end = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
                whole = torch.empty(offset + end * (0 not in shape), dtype=dtype)
                items[max(position, 0)] = whole.as_strided(shape, strides, offset)
        node.meta["val"] = tuple(items) if isinstance(value, tuple | list) else items[0]
        changed.add(node)


def _derived(node: torch.fx.Node) -> Any:
    def run() -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
        return node.target(*args, **kwargs)  # type: ignore[operator]

    try:
        return run()
    except (RuntimeError, ValueError):
        if node.target is not torch.ops.aten.view.default:
            raise
    source = node.all_input_nodes[0]
    with node.graph.inserting_before(node):
        copy = node.graph.call_function(torch.ops.aten.clone.default, (source,), _CONTIGUOUS)
    copy.meta = {**node.meta, "val": source.meta["val"].clone(**_CONTIGUOUS)}
    node.replace_input_with(source, copy)
    return run()
