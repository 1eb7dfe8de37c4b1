"""Read a graph with features and labels, and say what is wrong with one."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tightrope.core import TightropeError
from tightrope_ranks.values.graphs import NodeGraph

_MOST_CLASSES = 65535


def read_graph(data: Any) -> NodeGraph:
    """Read what looks like a graph of torch_geometric; what was read before is given back.

    Raises:
        TightropeError: says which part is wrong, and where.
    """
    if isinstance(data, NodeGraph):
        return data
    edges, x, y = (_array(data, name) for name in ("edge_index", "x", "y"))
    if x.ndim != 2 or not x.size:
        raise TightropeError(f"x has shape {x.shape}; a graph needs one row of features per node.")
    num = len(x)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise TightropeError(
            f"edge_index has shape {edges.shape} of {edges.dtype}; it must be (2, E) of integers."
        )
    _refuse(
        ((edges < 0) | (edges >= num)).any(0),
        lambda k: f"edge {k} goes from {edges[0, k]} to {edges[1, k]}; nodes are 0 to {num - 1}.",
    )
    if x.dtype.kind not in "fiub":
        raise TightropeError(f"x has type {x.dtype}; features must be real numbers.")
    _refuse(
        ~np.isfinite(x).all(1), lambda k: f"x has a value that is not finite in row {k}. Replace it first."
    )
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(rows).all():
        raise TightropeError("x has a value beyond 32-bit floats. Scale the features first.")
    if y.shape != (num,) or y.dtype.kind not in "iub":
        raise TightropeError(f"y has shape {y.shape} of {y.dtype}; it must be ({num},) of integers.")
    names = "train_mask", "val_mask", "test_mask"
    masks = [_array(data, name, np.zeros(num, bool)) for name in names]
    for name, mask in zip(names, masks, strict=True):
        if mask.shape != (num,) or mask.dtype != bool:
            raise TightropeError(
                f"{name} has shape {mask.shape} of {mask.dtype}; it must be ({num},) of bool."
            )
    if not masks[0].any():
        raise TightropeError("train_mask has no node: there is nothing to train on.")
    known = masks[0] | masks[1] | masks[2]
    _refuse(known & (y < 0), lambda k: f"y is {y[k]} at node {k}; labels count from 0.")
    _refuse(
        known & (y > _MOST_CLASSES), lambda k: f"y is {y[k]} at node {k}; at most {_MOST_CLASSES} is read."
    )
    return NodeGraph(np.ascontiguousarray(edges, np.int64), rows, y.astype(np.int64), *masks)


def _refuse(wrong: Any, says: Callable[[int], str]) -> None:
    if wrong.any():
        raise TightropeError(says(int(wrong.argmax())))


def _array(data: Any, name: str, default: np.ndarray | None = None) -> np.ndarray:
    value: Any = getattr(data, name, None)
    if value is None and (default is None or name == "train_mask"):
        raise TightropeError(f"the graph has no {name}; it needs edge_index, x, y and train_mask.")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(default if value is None else value)
