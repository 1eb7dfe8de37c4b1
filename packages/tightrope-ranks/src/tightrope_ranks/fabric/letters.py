"""What goes through a socket: typed letters in MessagePack; tensors lie in shared memory beside them."""

from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgspec
import torch

from tightrope.core import TightropeError
from tightrope.core.units import shown


class LetterKind(IntEnum):
    """What a letter is about."""

    CALL = 0
    KEEP = 1
    RESULT = 2
    ERROR = 3
    FREED = 4
    COUNT = 5
    STOP = 6


class PlaceItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="t"):
    """A tensor in shared memory.

    Attributes:
        own: whether it lies in an arena of the receiver.
        arena: its number.
        block: where the block begins.
        at: where the tensor begins.
        dtype: name.
        shape: of the tensor, dense.
    """

    own: bool
    arena: int
    block: int
    at: int
    dtype: str
    shape: tuple[int, ...]


class InlineItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="i"):
    """A small tensor, in the letter itself.

    Attributes:
        data: its bytes.
        dtype: name.
        shape: dense.
    """

    data: bytes
    dtype: str
    shape: tuple[int, ...]


class HandleItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="r"):
    """A tensor that stays on its node."""

    owner: int
    key: int


class PlainItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="v"):
    """Numbers, text, bytes, lists, dicts."""

    value: Any


Item: TypeAlias = PlaceItem | InlineItem | HandleItem | PlainItem
LETTER: Final = 2**20
"""Bytes of a letter, at most."""


class Letter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One message.

    Attributes:
        kind: see `LetterKind`.
        number: of the call.
        name: of the function, or what went wrong.
        items: arguments or results.
        single: whether the result is one item and no tuple.
        arenas: sizes of arenas whose descriptors come with the letter, by number.
        freed: arena and block of the receiver that the sender no longer reads.
    """

    kind: LetterKind
    number: int = 0
    name: str = ""
    items: tuple[Item, ...] = ()
    single: bool = False
    arenas: tuple[tuple[int, int], ...] = ()
    freed: tuple[tuple[int, int], ...] = ()


DTYPES: Final = {
    str(one).removeprefix("torch."): one
    for one in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
        torch.int32, torch.int64, torch.bool, torch.complex64,
    )
}  # fmt: skip
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Letter)


def encode(letter: Letter) -> bytes:
    """Write a letter.

    Raises:
        TightropeError: a value is none that can be sent.
    """
    try:
        return _encoder.encode(letter)
    except (TypeError, OverflowError, RecursionError) as error:
        raise TightropeError(
            f"{shown(letter.items)} cannot be sent ({error}): give tensors, handles, numbers, text, bytes, "
            "lists "
            "or dicts of these values."
        ) from error


def decode(data: bytes | memoryview) -> Letter:
    """Read a letter.

    Raises:
        TightropeError: it is none.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise TightropeError(f"a peer sent no valid letter: {error}.") from error
