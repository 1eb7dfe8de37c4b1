"""Tensors whose bytes may be evicted: typed access to ``evicting.hpp``, which is part of the allocator.

While an `EvictionWindow` is open, what its thread allocates through torch lies in an arena of ``evict.hpp``.
What meets the ops of that thread is C++, too (``watch.hpp``).
"""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import torch

from tightrope.core import Bytes, NativeError, TightropeError
from tightrope.native.hook.allocator import Allocator

_HANDLE, _I64 = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "arena": (_HANDLE, ()),
    "find": (_I64, (_I64,)),
    "is_inside": (_I64, (_I64,)),
    "note_released": (None, ()),
    "released": (_I64, (_HANDLE, _I64)),
    "evict_idle": (None, (_I64,)),
    "suspend": (_I64, (_I64,)),
    "held": (_I64, (_I64, _HANDLE, _I64)),
    "bytes": (_I64, (_I64,)),
    "move_out": (_I64, (_I64,)),
    "walls": (_I64, (_HANDLE, _I64)),
    "soft": (None, (_I64,)),
    "lose": (None, (_I64,)),
    "close": (_I64, (_HANDLE, _I64)),
    "most_held": (_I64, ()),
    "most_in_all": (_I64, ()),
    "let_grow": (None, ()),
    "grown": (_I64, ()),
}
TELL: Final = ctypes.CFUNCTYPE(_I64, _I64, ctypes.c_char_p, ctypes.c_char_p)
BEFORE: Final = ctypes.CFUNCTYPE(_I64, _I64, _I64)
AFTER: Final = ctypes.CFUNCTYPE(_I64, ctypes.c_char_p, ctypes.POINTER(_I64), ctypes.POINTER(_I64))
"""What C++ calls: about an error, before an op, and after it."""
_WATCH: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "see": (None, (_I64,)),
    "delete": (None, ()),
    "count": (_I64, (_I64,)),
    "trust": (None, (_I64,)),
    "most_again": (None, (ctypes.c_double,)),
    "most_runs": (None, (_I64, _I64)),
    "follow": (None, (_HANDLE, _HANDLE)),
    "knows": (_I64, (_I64,)),
    "maker": (ctypes.c_char_p, (_I64, _HANDLE)),
    "restore": (_I64, (_HANDLE, _I64)),
    "read": (_I64, (_I64, _I64)),
    "collect": (None, ()),
}
_OUT: Final = -2
_SOME: Final = 1024


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
        native.tr_watch_open.restype, native.tr_watch_open.argtypes = _HANDLE, (_HANDLE, TELL)
        for prefix, signatures in (("evict", _SIGNATURES), ("watch", _WATCH)):
            for name, (result, arguments) in signatures.items():
                call = getattr(native, f"tr_{prefix}_{name}")
                call.restype, call.argtypes = result, (_HANDLE, *arguments)
        self.native, self.handle = native, native.tr_evict_open(ctypes.byref(options), int(poison))
        if self.handle is None:
            message = native.tr_error().decode()
            refused = message.startswith("tightrope: asked")
            raise torch.OutOfMemoryError(message) if refused else NativeError(f"evict: {message}.")
        self.watcher: int | None = None

    def call(self, name: str, *arguments: int) -> int:
        """Call ``tr_evict_<name>``."""
        return getattr(self.native, f"tr_evict_{name}")(self.handle, *arguments) or 0

    def watch(self, tell: Any) -> None:
        """Make what meets ops; ``tell`` hears of its errors, and gives the numbers of those to raise.

        Raises:
            NativeError: torch's dispatcher refused it.
        """
        self.watcher = self.native.tr_watch_open(self.handle, tell)
        if self.watcher is None:
            raise NativeError(f"evict: {self.native.tr_error().decode()}")

    def watched(self, name: str, *arguments: Any) -> int:
        """Call ``tr_watch_<name>``; once it is gone, there is nothing to count."""
        if self.watcher is None:
            return 0
        return getattr(self.native, f"tr_watch_{name}")(self.watcher, *arguments) or 0

    def follow(self, before: Any, after: Any) -> None:
        """Call those before and after each op."""
        self.watched("follow", *(ctypes.cast(one, _HANDLE) for one in (before, after)))

    def check(self, failed: int) -> None:
        """Raise what a call says by its number.

        Raises:
            torch.OutOfMemoryError: there was no room.
            TightropeError: a rule was broken.
        """
        if failed:
            text = self.native.tr_error().decode()
            raise torch.OutOfMemoryError(text) if failed == _OUT else TightropeError(text)

    def released(self) -> list[int]:
        """List what was let go since the last call, where that is noted."""
        found, out = list[int](), (_I64 * _SOME)()
        while count := self.native.tr_evict_released(self.handle, out, _SOME):
            found += out[:count]
        return found

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

    def close(self, leaving: Sequence[int] = ()) -> int:
        """End it; tell how many blocks it held. Those of ``leaving`` move to the heap where that has room."""
        self.watched("delete")
        self.watcher = None
        kept = int(self.native.tr_evict_close(self.handle, (_I64 * len(leaving))(*leaving), len(leaving)))
        self.handle = None
        return kept
