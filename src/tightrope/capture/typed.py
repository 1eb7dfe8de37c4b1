"""Nodes of a captured graph as plain values: views of storages, scalars, names.

A view of the caller's memory remembers the input that it comes from: a later call may hand over other
memory, in which it lies as far from that input as it did here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.attribution import target_name
from tightrope.core import Argument, CaptureError, Items, Name, StorageId, View
from tightrope.core.values import EMPTY, ITEM_BYTES, number

Origins: TypeAlias = Mapping[torch.fx.Node, int]


def tensor_of(node: torch.fx.Node) -> Any:
    """The fake value of a node (a tensor, a tuple of tensors, or something else)."""
    return node.meta.get("val")


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype as views do.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def label(value: torch.Tensor) -> str:
    """Describe dtype and shape for people.

    >>> label(torch.ones(2, 3)), label(torch.ones(()))
    ('float32[2x3]', 'float32[scalar]')
    """
    return f"{dtype_name(value.dtype)}[{'x'.join(map(str, value.shape)) or 'scalar'}]"


def view_of(value: torch.Tensor, base: StorageId, source: int = -1) -> View:
    """Describe a tensor that looks into a storage.

    Raises:
        CaptureError: its layout or dtype has no plain description.
    """
    if value.layout != torch.strided or dtype_name(value.dtype) not in ITEM_BYTES:
        raise CaptureError(f"a {value.layout} tensor of {value.dtype} cannot be planned.")
    bits = " ".join(name for name, on in (("conj", value.is_conj()), ("neg", value.is_neg())) if on)
    empty = value.untyped_storage().nbytes() == 0
    return View(
        EMPTY if empty else base,
        dtype_name(value.dtype),
        tuple(int(size) for size in value.shape),
        tuple(int(stride) for stride in value.stride()),
        0 if empty else int(value.storage_offset()),
        bits,  # type: ignore[arg-type]
        -1 if empty else source,
    )


class Writer:
    """Writes the arguments of calls down.

    Args:
        storages: storage by the identity of a (fake) tensor's memory.
        origins: for tensors in the caller's memory, the input that they come from.
    """

    def __init__(self, storages: Mapping[int, StorageId], origins: Origins) -> None:
        self._storages, self._origins = storages, origins

    def view(self, node: torch.fx.Node) -> View:
        """Describe the tensor of a node.

        Raises:
            CaptureError: it is no tensor of this graph.
        """
        value = tensor_of(node)
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() == 0:
            return view_of(value, EMPTY)
        base = self._storages.get(_torch.storage_key(value)) if isinstance(value, torch.Tensor) else None
        if base is None:
            raise CaptureError(f"{node.name!r} is read and is not a tensor of this graph.")
        return view_of(value, base, self._origins.get(node, -1))

    def argument(self, value: Any) -> Argument:
        """Write one argument down.

        Raises:
            CaptureError: it is of a kind that no file can hold.
        """
        match value:
            case torch.fx.Node():
                return self.view(value)
            case None | bool() | str():
                return value
            case int() | float() | complex():
                return number(value)
            case torch.dtype():
                return Name("dtype", dtype_name(value))
            case torch.device():
                return Name("device", str(value))
            case torch.layout():
                return Name("layout", str(value).removeprefix("torch."))
            case torch.memory_format():
                return Name("memory_format", str(value).removeprefix("torch."))
            case list() | tuple():
                return Items(tuple(self.argument(item) for item in value))
        if _torch.is_overload(value):
            return Name("op", target_name(value))
        raise CaptureError(f"an argument of type {type(value).__name__} cannot be planned: {value!r:.80}.")

    def arguments(self, values: tuple[Any, ...]) -> tuple[Argument, ...]:
        """Write positional arguments down."""
        return tuple(self.argument(value) for value in values)

    def keywords(self, values: Mapping[str, Any]) -> tuple[tuple[str, Argument], ...]:
        """Write keyword arguments down."""
        return tuple((name, self.argument(value)) for name, value in values.items())
