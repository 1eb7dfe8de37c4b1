"""Arguments of ops as plain values, so that a saved graph can be run without torch's own objects.

A tensor is a `View`: it looks into a *base*, which is a storage in a graph and a buffer in an
executable. Scalars stand for themselves, lists are `Items`, and what has no JSON form (a dtype, a
device, infinity, the op behind another op) is a `Name`.

    base    |  x x x x x x x x x x x x  |     View(base, "float32", (2, 3), (6, 1), offset=1)
    view    |    x x x       x x x      |     elements, not bytes
"""

import math
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from tightrope.core.units import Bytes

_LARGEST: Final = 2**62
"""Largest integer that a file holds as a number; torch's "to the end" is 2^63 - 1."""

EMPTY: Final = -1
"""Base of a tensor without bytes, or of one in flash, whose offset counts from the first constant."""

CONSTANTS: Final = "constants"
"""Name in a graph's environment: bytes of constants in flash, that views of the base `EMPTY` look into."""

INNER: Final = -2
"""Base of the first value inside a fused stretch; the next ones are -3, -4, ..."""

ITEM_BYTES: Final[dict[str, int]] = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "complex32": 4, "uint64": 8, "int64": 8, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one element by dtype."""


class View(msgspec.Struct, frozen=True, tag="view", array_like=True, repr_omit_defaults=True):
    """A tensor: a typed, shaped look into its base.

    Attributes:
        base: storage (in a graph) or buffer (in an executable), `EMPTY` without bytes.
        dtype: e.g. ``float32``.
        shape: sizes.
        strides: in elements.
        offset: first element.
        bits: lazy conjugation and negation that the tensor carries.
        input: of a storage of the caller, the input through which it is reached: the caller may
            hand over other memory in the next call.
    """

    base: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    bits: Literal["", "conj", "neg", "conj neg"] = ""
    input: int = -1

    @property
    def end(self) -> Bytes:
        """Bytes from the start of the base to the end of the last element.

        >>> View(0, "float32", (2, 3), (6, 1), 1).end
        40
        """
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset + last + 1) * ITEM_BYTES[self.dtype]


class Name(msgspec.Struct, frozen=True, tag="name", array_like=True):
    """A value that only torch, or no JSON number, can stand for: ``("dtype", "float32")``."""

    kind: Literal["dtype", "device", "layout", "memory_format", "op", "number"]
    text: str


class Items(msgspec.Struct, frozen=True, tag="items", array_like=True):
    """A list of arguments."""

    items: tuple["Argument", ...]


Argument: TypeAlias = View | Name | Items | bool | int | float | str | None


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What a storage's first tensor looks like when the op returns.

    Attributes:
        position: of the tensor in the op's result, -1 where the result is that tensor.
        view: its layout; its base is the storage (or buffer) that the op creates.
    """

    position: int
    view: View


class Input(msgspec.Struct, frozen=True, array_like=True):
    """One value that the caller hands over.

    Attributes:
        name: in the captured program.
        view: its layout, None for a value that no op reads.
    """

    name: str
    view: View | None = None


class Part(msgspec.Struct, frozen=True):
    """A stretch of ops between two moments in which the caller has control.

    Attributes:
        end: number of ops of the base order up to here; the last of them hands the outputs over,
            except in the last part, whose outputs are there when the graph ends.
        inputs: what the caller hands over when the part begins.
        outputs: what it gets when the part ends.
        call: which call of the model it belongs to. Forward and backward of one call share a number,
            and no op of one call reads what another call makes.
    """

    end: int
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Argument, ...] = ()
    call: int = 0


def views(argument: Argument) -> Iterator[View]:
    """Iterate over the tensors in an argument, in order, with repeats.

    >>> [view.base for view in views(Items((1, View(3, "int8", (), ()), None)))]
    [3]
    """
    if isinstance(argument, View):
        yield argument
    elif isinstance(argument, Items):
        for item in argument.items:
            yield from views(item)


def rebased(argument: Argument, base: Callable[[View], int]) -> Argument:
    """Let every view look into another base; views without bytes stay.

    >>> rebased(Items((View(3, "int8", (), ()),)), lambda view: 7).items[0].base
    7
    """
    if isinstance(argument, View):
        if argument.base == EMPTY:
            return argument
        return View(
            base(argument), argument.dtype, argument.shape, argument.strides, argument.offset, argument.bits,
            argument.input,
        )  # fmt: skip
    if isinstance(argument, Items):
        return Items(tuple(rebased(item, base) for item in argument.items))
    return argument


def number(value: complex) -> Argument:
    """Write a number; infinities, NaN, complex numbers and integers beyond 2^62 become names.

    >>> number(2.0), number(float("inf")).text, number(1j).text
    (2.0, 'inf', '1j')
    """
    if isinstance(value, complex):
        return Name("number", str(value).strip("()"))
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else Name("number", repr(value))
    return value if math.isfinite(value) else Name("number", repr(value))
