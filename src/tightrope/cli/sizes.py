"""Other sizes of the same call: batches, lengths of sequences, and the largest that fits."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tightrope.cli.target import Built
from tightrope.core import Bytes, Machine, TightropeError, format_bytes

if TYPE_CHECKING:
    import torch

Axis = Literal["batch", "seq"]
_MOST_SIZES = 64
_LARGEST = 2**20
"""Sizes beyond are not tried."""
_MOST, _DIGITS = 2**31 - 1, 10
"""The largest size that can be asked for."""
_MOST_ELEMENTS = 2**62
_DIMENSIONS: Final[dict[Axis, tuple[int, range]]] = {"batch": (0, range(1, 65)), "seq": (1, range(2, 4))}
"""The dimension that has the size, and numbers of dimensions of the tensors that are resized."""
AXES: Final = tuple(_DIMENSIONS)
"""What can be resized, in the order in which rows are given."""


class Largest(NamedTuple):
    """The largest size that fits.

    Attributes:
        size: 0 = none does.
        stopped: why a larger one cannot be had, where that is not for its bytes.
    """

    size: int
    stopped: str


def parse_sizes(option: Axis, text: str) -> tuple[int, ...]:
    """Read sizes of batches or sequences: ``1,2,4,8``.

    Raises:
        TightropeError: quotes what is no size.

    >>> parse_sizes("batch", "1, 2,4")
    (1, 2, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and part.strip("0") for part in parts):
        raise TightropeError(
            f"{option} {text[:64]!r}: write sizes, at least 1 each, as in --{option} 1,2,4,8."
        )
    if large := [part for part in parts if len(part) > _DIGITS or int(part) > _MOST]:
        raise TightropeError(f"{option} {large[0][:64]!r} is too large: give sizes of at most {_MOST}.")
    if len(parts) > _MOST_SIZES:
        raise TightropeError(f"{len(parts)} sizes after --{option}: give at most {_MOST_SIZES}.")
    return tuple(int(part) for part in parts)


def _sized(built: Built, axis: Axis) -> "Iterator[torch.Tensor]":
    import torch

    counts = _DIMENSIONS[axis][1]
    every = (*built.args, *built.kwargs.values())
    return (value for value in every if isinstance(value, torch.Tensor) and value.dim() in counts)


def size_of(built: Built, axis: Axis) -> int | None:
    """Read the size of the batch, or the length of the sequences, off the inputs; None = there is none."""
    dimension = _DIMENSIONS[axis][0]
    return next((tensor.shape[dimension] for tensor in _sized(built, axis)), None)


def length_of(built: Built) -> int | None:
    """Read the length of the sequences off the inputs; None where rows of numbers may as well be features."""
    sized = (
        one
        for one in _sized(built, "seq")
        if one.dim() > 2 or not (one.is_floating_point() or one.is_complex())
    )
    return next((tensor.shape[1] for tensor in sized), None)


def resized(built: Built, axis: Axis, wanted: int) -> Built:
    """Make the same call with inputs of another size: parts of them are left out, or repeated.

    Raises:
        TightropeError: no input has such a dimension, or its memory does not hold inputs of that size.
    """
    size, (dimension, counts) = size_of(built, axis), _DIMENSIONS[axis]
    if not size:
        what = {
            "batch": "an input with rows: a tensor whose first dimension is the batch",
            "seq": "an input of two or three dimensions, of which the second is the length",
        }
        raise TightropeError(f"--{axis} needs {what[axis]}.")
    import torch

    _check_memory(built, axis, wanted, size)
    made: dict[int, Any] = {}

    def other(value: Any) -> Any:
        if id(value) not in made:  # a tensor that is given twice stays one
            made[id(value)] = of_size(value)
        return made[id(value)]

    def of_size(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() not in counts or value.shape[dimension] != size:
            return value
        parts = torch.arange(wanted, device=value.device) % size
        return value.detach().index_select(dimension, parts).requires_grad_(value.requires_grad)

    kwargs = {name: other(value) for name, value in built.kwargs.items()}
    return Built(built.model, tuple(map(other, built.args)), kwargs)


def _check_memory(built: Built, axis: Axis, wanted: int, size: int) -> None:
    """Refuse inputs that this machine could not make; those of the meta device take no memory."""
    tensors = list(_sized(built, axis))
    bytes_ = sum(t.numel() // size * wanted * t.itemsize for t in tensors if t.device.type == "cpu")
    memory = Machine.here().tiers[0].bytes
    if bytes_ > memory:
        raise TightropeError(
            f"{axis} {wanted}: the inputs alone would take {format_bytes(bytes_)}, and this machine has "
            f"{format_bytes(memory)}. Give a smaller one, or let the function build everything on the meta "
            "device."
        )
    if any(t.numel() // size * wanted > _MOST_ELEMENTS for t in tensors):
        raise TightropeError(
            f"{axis} {wanted}: an input would have more than 2^62 elements: give a smaller one."
        )


def largest(need: Callable[[int], Bytes], limit: Bytes, start: int) -> Largest:
    """Find the largest size that needs at most ``limit`` bytes; the next one was seen to need more.

    Bytes are taken to grow with the size. The next size to try is read off a line through two known ones,
    and every third time halfway between them. Where twice the first size cannot be had, and one more cannot
    either, the model is taken to have one size alone.

    Args:
        need: bytes that a size needs; raises `TightropeError` where it cannot be had.
        limit: bytes.
        start: a size that can be had.

    Raises:
        TightropeError: the first size does not fit, and a smaller one cannot be had.

    >>> largest(lambda size: 100 + 7 * size, 170, 3)
    Largest(size=10, stopped='')
    """
    low, high, tried = 0, _LARGEST + 1, 0
    needs: dict[int, Bytes] = {}
    stopped, size = "", start
    while high - low > 1:
        try:
            needs[size] = need(size)
            fits, why = needs[size] <= limit, ""
        except TightropeError as error:
            if size == start:
                raise
            if size < start:
                raise TightropeError(
                    f"a size of {start} needs {needs[start]} bytes, more than {limit}, and {size} cannot be "
                    f"had: {error}"
                ) from error
            fits, why = False, f"{size} cannot be had: {error}"
        if fits:
            low = size
        else:
            high, stopped = size, why
        tried += 1
        if why and low == start:  # is there any other size?
            size = start + 1
        elif high > _LARGEST:
            size = min(2 * low, _LARGEST)
        elif low in needs and high in needs and tried % 3:
            share = (limit - needs[low]) / max(1, needs[high] - needs[low])
            size = min(max(low + 1, low + int((high - low) * share)), high - 1)
        else:
            size = (low + high) // 2
    return Largest(low, stopped or (f"{_LARGEST} is the largest that is tried" if low == _LARGEST else ""))
