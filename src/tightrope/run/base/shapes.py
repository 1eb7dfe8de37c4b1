"""Shapes as users declare them, and sizes: one number per dimension that may change."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from math import prod
from typing import Any, Final, TypeAlias

from tightrope.core import TightropeError
from tightrope.core.arguments import refuse_argument
from tightrope.core.units import shown

Sizes: TypeAlias = tuple[int, ...]
Shape: TypeAlias = tuple[int, ...] | Mapping[str, tuple[int, ...]]
Shapes: TypeAlias = tuple[Shape, ...] | None
"""The largest of every bucket, as declared; None = by rule."""
_MOST: Final = 2**48
"""Elements of a declared tensor: no machine holds more."""


def check_shapes(shapes: object, *, fuse: bool, page_to: object = None) -> Shapes:
    """Read what buckets a user asks for.

    Raises:
        TightropeError: quotes what is neither "bucket" nor a list of shapes, or does not go together.
    """
    if shapes is None:
        return None
    if fuse:
        raise TightropeError(
            f"shapes={shapes!r} and fuse=True do not go together: loops are compiled for one shape. Leave "
            "one of the two out."
        )
    if page_to is not None:
        raise TightropeError(
            f"shapes={shapes!r} and page_to={shown(page_to)} do not go together: pages have the sizes of one "
            "shape. Leave one of the two out."
        )
    if shapes == "bucket" and isinstance(shapes, str):
        return None
    wanted = (
        '"bucket", or a list of the largest shapes to expect: each the shape of the first tensor, such as '
        '(8, 128), or of tensors by name, such as {"input_ids": (8, 128)}'
    )
    if not isinstance(shapes, list | tuple) or not shapes or all(isinstance(one, int) for one in shapes):
        refuse_argument("shapes", shapes, wanted)
    found: list[Shape] = []
    for shape in shapes:
        named = isinstance(shape, Mapping) and shape and all(isinstance(name, str) for name in shape)
        every = shape.values() if named else (shape,)
        if not all(map(_is_shape, every)):
            refuse_argument("shapes", shapes, wanted)
        if any(prod(one) > _MOST for one in every):
            refuse_argument("shapes", shapes, f"tensors of at most {_MOST} elements")
        found.append({name: tuple(one) for name, one in shape.items()} if named else tuple(shape))
    return tuple(found)


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, list | tuple)
        and len(shape) > 0
        and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape)
    )


def rounded(size: int) -> int:
    """The largest size of a bucket by rule: the next power of two, or three quarters of it.

    >>> [rounded(size) for size in (1, 5, 6, 7, 64, 65, 97)]
    [1, 6, 6, 8, 64, 96, 128]
    """
    power = 1 << max(size - 1, 0).bit_length()
    return power * 3 // 4 if 4 * size <= 3 * power and power > 2 else power


def changes(size: int | str) -> bool:
    """Tell whether a dimension is the position of a size that may change.

    >>> changes("0"), changes(4), changes("2*s0")
    (True, False, False)
    """
    return isinstance(size, str) and size.isdigit()


def within(sizes: Sizes, most: Sizes) -> bool:
    """Tell whether no size is above another one in its place."""
    return all(size <= limit for size, limit in zip(sizes, most, strict=True))


def maximal(declared: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """Declared sizes than which no others are as large in every size, the largest first."""
    largest = sorted(declared, key=prod, reverse=True)
    return tuple(
        most for most in largest if not any(most != other and within(most, other) for other in declared)
    )


def positional(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Name the parameters that take inputs by position, in order; none where there is no signature.

    >>> positional(lambda ids, mask=None, *rest, labels=None: ids)
    ('ids', 'mask')
    """
    try:
        parameters = signature(forward).parameters.values()
    except (TypeError, ValueError):  # as of a compiled function that has none
        return ()
    kinds = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
    return tuple(one.name for one in parameters if one.kind in kinds)


def by_name(given: str, parameters: Sequence[str]) -> tuple[str, ...]:
    """List the names under which a shape may be declared for a tensor of a call.

    >>> by_name("input 1", ("ids", "mask"))
    ('input 1', 'input 1', 'mask')
    >>> by_name("input 0.labels", ("batch",))
    ('input 0.labels', 'labels', 'batch.labels')
    """
    last = given.split(".")[-1]
    head, dot, rest = given.removeprefix("input ").partition(".")
    if given.startswith("input ") and head.isdecimal() and int(head) < len(parameters):
        return given, last, f"{parameters[int(head)]}{dot}{rest}"
    return given, last
