"""Read a graph with features and labels, and say what is wrong with one."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tightrope.core import TightropeError
from tightrope_ranks.values.graphs import NodeGraph

_MOST_CLASSES: Final = 65535
_MASKS: Final = ("train_mask", "val_mask", "test_mask")


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
    masks = [_array(data, name, np.zeros(num, bool)) for name in _MASKS]
    _typed("edge_index", edges, edges.ndim == 2 and len(edges) == 2, "iu", "(2, E) of integers")
    _typed("x", x, True, "fiub", "real numbers")
    _typed("y", y, y.shape == (num,), "iub", f"({num},) of integers")
    for name, mask in zip(_MASKS, masks, strict=True):
        _typed(name, mask, mask.shape == (num,), "b", f"({num},) of bool")
    _refuse(
        ((edges < 0) | (edges >= num)).any(0),
        lambda k: f"edge {k} goes from {edges[0, k]} to {edges[1, k]}; nodes are 0 to {num - 1}.",
    )
    _refuse(~np.isfinite(x).all(1), lambda k: f"x has a value that is not finite in row {k}. Replace it.")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(x, np.float32)
    _refuse(~np.isfinite(rows).all(1), lambda k: f"x has a value beyond 32-bit floats in row {k}. Scale x.")
    if not masks[0].any():
        raise TightropeError("train_mask has no node: there is nothing to train on.")
    known = masks[0] | masks[1] | masks[2]
    _refuse(
        known & ((y < 0) | (y > _MOST_CLASSES)),
        lambda k: f"y is {y[k]} at node {k}; labels count from 0, and at most {_MOST_CLASSES} is read.",
    )
    return NodeGraph(np.ascontiguousarray(edges, np.int64), rows, y.astype(np.int64), *masks)


def _typed(name: str, one: np.ndarray, fits: bool, kinds: str, needed: str) -> None:
    if not fits or one.dtype.kind not in kinds:
        raise TightropeError(f"{name} has shape {one.shape} of {one.dtype}; it must be {needed}.")


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
