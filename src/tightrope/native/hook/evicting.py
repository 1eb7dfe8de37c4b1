"""Tensors whose bytes may be evicted: typed access to ``evicting.hpp``, which is part of the allocator.

While an `EvictionWindow` is open, what its thread allocates through torch lies in an arena of ``evict.hpp``.
Arguments are plain integers, and several steps of an op are one call, as every op that runs pays for them.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import torch

from tightrope.core import Bytes, NativeError
from tightrope.native.hook.allocator import Allocator

_HANDLE, _I64 = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "arena": (_HANDLE, ()),
    "rows": (_HANDLE, ()),
    "kind": (_I64, (_I64,)),
    "inputs": (_I64, (_I64,) * 9),
    "prepare": (None, (_I64,) * 4),
    "finish": (_I64, (_I64,) * 7),
    "abandon": (None, ()),
    "find": (_I64, (_I64,)),
    "restore": (_I64, (_I64, _I64)),
    "storage": (_I64, (_I64,)),
    "pins": (_I64, (_I64,)),
    "is_inside": (_I64, (_I64,)),
    "is_held": (_I64, (_I64,)),
    "forgotten": (_I64, ()),
    "note_released": (None, ()),
    "released": (_I64, ()),
    "evict_idle": (None, (_I64,)),
    "suspend": (_I64, (_I64,)),
    "held": (_I64, (_I64, _HANDLE, _I64)),
    "bytes": (_I64, (_I64,)),
    "move_out": (_I64, (_I64,)),
    "walls": (_I64, (_HANDLE, _I64)),
    "root": (None, (_I64,)),
    "soft": (None, (_I64,)),
    "open_frame": (None, ()),
    "pin_resident": (_I64, (_I64,)),
    "close_frame": (None, ()),
    "lose": (None, (_I64,)),
    "close": (_I64, ()),
}
KEYS, OUTPUTS, CHANGED, FORGOTTEN = range(4)
"""SharedRows of integers that calls read and write."""
ELSEWHERE: Final = -2
"""In the row of what changed: the op gave the storage other bytes."""


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Memory that both sides see: ``row * width`` is where a row begins."""

    cells: Any
    width: int


class EvictionWindow:
    """An arena for what the calling thread allocates, until `close`.

    Args:
        allocator: of the process.
        options: as ``evict.hpp`` lays them out.
        poison: whether freed bytes are overwritten.

    Raises:
        NativeError: one is open already.
        torch.OutOfMemoryError: it does not fit under the allocator's limit.
    """

    def __init__(self, allocator: Allocator, options: ctypes.Structure, *, poison: bool = False) -> None:
        native = allocator.native
        native.tr_evict_open.restype, native.tr_evict_open.argtypes = _HANDLE, (_HANDLE, _I64)
        native.tr_evict_unref.restype, native.tr_evict_unref.argtypes = None, (_I64,)
        native.tr_evict_to_heap.restype, native.tr_evict_to_heap.argtypes = _I64, (_I64,)
        native.tr_evict_columns.restype = _I64
        for name, (result, arguments) in _SIGNATURES.items():
            call = getattr(native, f"tr_evict_{name}")
            call.restype, call.argtypes = result, (_HANDLE, *arguments)
        self.native, self.handle = native, native.tr_evict_open(ctypes.byref(options), int(poison))
        if self.handle is None:
            message = native.tr_error().decode()
            refused = message.startswith("tightrope: asked")
            raise torch.OutOfMemoryError(message) if refused else NativeError(f"evict: {message}.")
        width = int(native.tr_evict_columns())
        self.rows = SharedRows((_I64 * (4 * width)).from_address(native.tr_evict_rows(self.handle)), width)

    def call(self, name: str, *arguments: int) -> int:
        """Call ``tr_evict_<name>``."""
        return getattr(self.native, f"tr_evict_{name}")(self.handle, *arguments) or 0

    def walls(self) -> list[tuple[int, Bytes, int]]:
        """List what could not be evicted at the last refusal: record, bytes, and how often it was pinned."""
        count = self.native.tr_evict_walls(self.handle, None, 0)
        out = (_I64 * max(count, 1))()
        self.native.tr_evict_walls(self.handle, out, count)
        return [(out[k], out[k + 1], out[k + 2]) for k in range(0, count, 3)]

    def held(self, *, resident: bool) -> list[int]:
        """List the storages of the arena that somebody holds, with their bytes or evicted."""
        count = self.native.tr_evict_held(self.handle, int(resident), None, 0)
        out = (_I64 * max(count, 1))()
        self.native.tr_evict_held(self.handle, int(resident), out, count)
        return list(out[:count])

    def move_out(self, storage: int) -> bool:
        """Move a held storage to the heap; tell whether that had room."""
        return self.call("move_out", storage) == 0

    def size(self, storage: int) -> Bytes:
        """Tell the bytes of a storage."""
        return self.call("bytes", storage)

    def close(self) -> int:
        """End it; tell how many blocks stay where they are, as code holds them by address."""
        kept = self.call("close")
        self.handle = None
        return kept
