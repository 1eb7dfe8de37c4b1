"""What goes through a socket: typed letters in MessagePack; tensors lie in shared memory beside them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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


SingleItem: TypeAlias = PlaceItem | InlineItem | HandleItem
_MARK: Final = 1
"""Code of the extension that stands for a tensor or handle inside lists and dicts."""


class NestItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="n"):
    """Lists and dicts with tensors or handles inside.

    Attributes:
        value: the lists and dicts, with a mark in place of each tensor or handle; see `divided`.
        inner: tensors and handles, in the order of their marks.
    """

    value: Any
    inner: tuple[SingleItem, ...]


Item: TypeAlias = SingleItem | PlainItem | NestItem
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

SIMPLE: Final = frozenset((type(None), bool, int, float, str, bytes))
"""Classes of values that arrive as they are."""
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Letter)


def encode(letter: Letter) -> bytes:
    """Write a letter.

    Raises:
        TightropeError: a value is none that can be sent.
    """
    try:
        return _encoder.encode(letter)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        values = [getattr(one, "value", one) for one in letter.items]
        raise _unsendable(shown([*filter(None, [letter.name]), *values]), error) from error


def divided(value: Any, leaves: tuple[type, ...]) -> tuple[msgspec.Raw, list[Any]]:
    """Return a value in MessagePack with a mark in place of each leaf, and the leaves.

    Raises:
        TightropeError: a value in it is none that can be sent.
    """
    found: list[Any] = []

    def mark(one: Any) -> Any:
        if not isinstance(one, leaves):
            raise TypeError(f"of type {type(one).__name__}")
        found.append(one)
        return msgspec.msgpack.Ext(_MARK, (len(found) - 1).to_bytes(4, "big"))

    try:
        _check(value, leaves)
        return msgspec.Raw(msgspec.msgpack.Encoder(enc_hook=mark).encode(value)), found
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unsendable(shown(value), error) from error


def _unsendable(what: str, error: Exception) -> TightropeError:
    return TightropeError(
        f"{what} cannot be sent ({error}): give tensors, handles, numbers, text, bytes, lists or dicts of "
        "these values."
    )


def _check(value: Any, leaves: tuple[type, ...]) -> None:
    """Refuse what MessagePack would write as a value of another class, or as a mark."""
    if type(value) in SIMPLE or isinstance(value, leaves):
        return
    if isinstance(value, dict):
        _check(tuple(value), ())
        value = value.values()
    elif not isinstance(value, list | tuple):
        raise TypeError(f"of type {type(value).__name__}")
    for one in value:
        if type(one) not in SIMPLE:
            _check(one, leaves)


def joined(value: Any, leaves: Sequence[Any]) -> Any:
    """Put leaves back where their marks are."""

    def leaf(one: Any) -> Any:
        marked = isinstance(one, msgspec.msgpack.Ext) and one.code == _MARK
        return leaves[int.from_bytes(one.data, "big")] if marked else one

    return changed(value, leaf)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change what lies inside lists, tuples and dicts; tuples become lists, as on the way to another node."""
    if isinstance(value, list | tuple):
        return [changed(one, change) for one in value]
    if isinstance(value, dict):
        return {key: changed(one, change) for key, one in value.items()}
    return change(value)


def flat(items: Iterable[Item]) -> Iterator[SingleItem | PlainItem]:
    """List items, those inside lists and dicts instead of the whole."""
    for item in items:
        if isinstance(item, NestItem):
            yield from item.inner
        else:
            yield item


def heading(data: bytes | memoryview) -> tuple[int, int] | None:
    """Return kind and number of a letter that `decode` refuses; None where it has none."""
    try:
        found = msgspec.msgpack.decode(data)
    except Exception:  # a peer may send any bytes
        return None
    if isinstance(found, list) and len(found) >= 2 and all(type(one) is int for one in found[:2]):
        return found[0], found[1]
    return None


def decode(data: bytes | memoryview) -> Letter:
    """Read a letter.

    Raises:
        TightropeError: it is none.
    """
    try:
        return _decoder.decode(data)
    except (
        Exception
    ) as error:  # a peer may send any bytes: text, keys and times in them raise errors of theirs
        raise TightropeError(f"a peer sent no valid letter: {error}.") from error
