"""From a tensor to a view of its memory by ops that a compiler can see through.

Idea        Memory is seen as an array whose sizes are the ratios of the view's strides. A view then is a
            slice of it per axis, in another order: reshape, slice, permute, expand.
Guarantee   The ops give the elements that the view names. Where no such array exists (overlapping
            windows, strides that do not divide each other), there is no answer.
Complexity  Linear in the axes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tightrope.core import View


class Move(NamedTuple):
    """One op on the tensor: ``reshape``, ``permute``, ``narrow`` (axis, start, length) or ``expand``."""

    kind: str
    numbers: tuple[int, ...]


def moves(root: View, view: View) -> tuple[Move, ...] | None:
    """Find the ops that lead from the first tensor of a buffer to a view of it.

    Args:
        root: dense, from the start of the buffer.
        view: of the same dtype.

    Returns:
        The ops, in order; None where there are none, or they are not known here.

    Example:
        >>> moves(View(0, "float32", (2, 6), (6, 1)), View(0, "float32", (3, 2), (1, 6), 3))
        (Move(kind='reshape', numbers=(2, 6, 1)), Move(kind='narrow', numbers=(1, 3, 3)), \
Move(kind='permute', numbers=(1, 0, 2)), Move(kind='reshape', numbers=(3, 2)))
    """
    if (root.shape, root.strides, root.offset) == (view.shape, view.strides, view.offset):
        return () if root.bits == view.bits == "" and root.dtype == view.dtype else None
    if root.dtype != view.dtype or root.bits or view.bits or root.offset or 0 in (*root.shape, *view.shape):
        return None
    order = sorted(range(len(root.shape)), key=lambda axis: (-root.strides[axis], axis))
    dense = 1
    for axis in reversed(order):
        if root.shape[axis] > 1 and root.strides[axis] != dense:
            return None
        dense *= root.shape[axis]
    found = [] if order == sorted(order) else [Move("permute", tuple(order))]
    rest = _sliced(dense, view)
    return None if rest is None else _without_no_ops((*found, *rest), root.shape)


def _sliced(count: int, view: View) -> list[Move] | None:
    """Slice a dense array of ``count`` elements."""
    axes = [a for a in range(len(view.shape)) if view.shape[a] > 1 and view.strides[a]]
    axes.sort(key=lambda axis: -view.strides[axis])
    sizes, begins, left, outer = list[int](), list[int](), view.offset, count
    for axis in axes:
        stride = view.strides[axis]
        if outer % stride:
            return None
        sizes.append(outer // stride)
        begins.append(left // stride)
        left, outer = left % stride, stride
    sizes.append(outer)
    begins.append(left)
    lengths = [*(view.shape[axis] for axis in axes), 1]
    found = [Move("reshape", tuple(sizes))]
    for axis, (size, begin, length) in enumerate(zip(sizes, begins, lengths, strict=True)):
        if begin + length > size:
            return None
        if length < size:
            found.append(Move("narrow", (axis, begin, length)))
    back = [axes.index(axis) for axis in sorted(axes)]
    found.append(Move("permute", (*back, len(axes))))
    flat = tuple(size if view.strides[a] else 1 for a, size in enumerate(view.shape))
    found.append(Move("reshape", flat))
    if flat != view.shape:
        found.append(Move("expand", view.shape))
    return found


def _without_no_ops(found: Sequence[Move], shape: tuple[int, ...]) -> tuple[Move, ...]:
    kept: list[Move] = []
    for position, move in enumerate(found):
        after = shape
        if move.kind == "permute":
            after = tuple(shape[axis] for axis in move.numbers)
        elif move.kind == "narrow":
            after = (*shape[: move.numbers[0]], move.numbers[2], *shape[move.numbers[0] + 1 :])
        else:
            after = move.numbers
        ahead = found[position + 1] if position + 1 < len(found) else None
        same = move.numbers == tuple(range(len(shape))) if move.kind == "permute" else after == shape
        reshaped_again = move.kind == "reshape" and ahead is not None and ahead.kind == "reshape"
        if not same and not reshaped_again:
            kept.append(move)
            shape = after
        elif same:
            shape = after
    return tuple(kept)
