"""Read a graph with features and labels, and say what is wrong with one."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from tightrope.core import TightropeError
from tightrope_ranks.values.graphs import NodeGraph

_MOST_CLASSES = 65535


def read_graph(data: Any) -> NodeGraph:
    """Read what looks like a graph of torch_geometric.

    Args:
        data: has ``edge_index`` (2, E), ``x`` (N, D), ``y`` (N,) and ``train_mask`` (N,), perhaps
            ``val_mask`` and ``test_mask``: tensors or arrays.

    Raises:
        TightropeError: says which part is wrong, and where.
    """
    if isinstance(data, NodeGraph):
        names = "edge_index", "x", "y", "train_mask", "val_mask", "test_mask"
        fields = data.edges, data.features, data.labels, data.train, data.validate, data.test
        data = SimpleNamespace(**dict(zip(names, fields, strict=True)))
    edges, features, labels = (_array(data, name) for name in ("edge_index", "x", "y"))
    if features.ndim != 2 or not len(features) or not features.shape[1]:
        raise TightropeError(f"x has shape {features.shape}; a graph needs one row of features per node.")
    num = len(features)
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise TightropeError(
            f"edge_index has shape {edges.shape} of {edges.dtype}; it must be (2, E) of integers."
        )
    wrong = np.flatnonzero(((edges < 0) | (edges >= num)).any(0))
    if len(wrong):
        one = int(wrong[0])
        raise TightropeError(
            f"edge {one} goes from {edges[0, one]} to {edges[1, one]}; nodes are 0 to {num - 1}."
        )
    if features.dtype.kind not in "fiub":
        raise TightropeError(f"x has type {features.dtype}; features must be real numbers.")
    wrong = np.flatnonzero(~np.isfinite(features).all(1))
    if len(wrong):
        raise TightropeError(f"x has a value that is not finite in row {wrong[0]}. Replace it first.")
    masks = [_mask(data, name, num) for name in ("train_mask", "val_mask", "test_mask")]
    if not masks[0].any():
        raise TightropeError("train_mask has no node: there is nothing to train on.")
    if labels.shape != (num,) or labels.dtype.kind not in "iub":
        raise TightropeError(
            f"y has shape {labels.shape} of {labels.dtype}; it must be ({num},) of integers."
        )
    wrong = np.flatnonzero((labels < 0) & (masks[0] | masks[1] | masks[2]))
    if len(wrong):
        raise TightropeError(f"y is {labels[wrong[0]]} at node {wrong[0]}; labels count from 0.")
    wrong = np.flatnonzero((labels > _MOST_CLASSES) & (masks[0] | masks[1] | masks[2]))
    if len(wrong):
        raise TightropeError(f"y is {labels[wrong[0]]} at node {wrong[0]}; at most {_MOST_CLASSES} is read.")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(features, np.float32)
    if not np.isfinite(rows).all():
        raise TightropeError("x has a value beyond 32-bit floats. Scale the features first.")
    return NodeGraph(np.ascontiguousarray(edges, np.int64), rows, labels.astype(np.int64), *masks)


def _array(data: Any, name: str) -> np.ndarray:
    value = getattr(data, name, None)
    if value is None:
        raise TightropeError(f"the graph has no {name}; it needs edge_index, x, y and train_mask.")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def _mask(data: Any, name: str, num: int) -> np.ndarray:
    if name != "train_mask" and getattr(data, name, None) is None:
        return np.zeros(num, bool)
    mask = _array(data, name)
    if mask.shape != (num,) or mask.dtype != bool:
        raise TightropeError(f"{name} has shape {mask.shape} of {mask.dtype}; it must be ({num},) of bool.")
    return mask
