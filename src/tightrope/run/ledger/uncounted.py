"""Tensors that the allocator did not serve: older than the hook, or with memory of numpy's or of others.

They are found in two ways: Python's garbage collector is asked for every tensor that it knows, when the
hook is installed and when something is compiled, and the arguments of every step are looked at. So a
batch counts from the time when it exists, and not from the time when it is used.

Not seen are tensors that C++ code alone holds, and tensors that ``gc.freeze`` hides, until a step gets
them. Pages of a file that is mapped into memory count only where a step gets them: the system can drop them.
"""

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch

from tightrope.capture import _probes, _torch
from tightrope.core import Bytes, round_up

_AT_ONCE: Final = 1024
"""Tensors that are looked at in one reading of the sum: 0.7 us each, and data sets have many."""
_SEARCHED: Final[Bytes] = 1 << 20
"""Storages from this size on are looked up among the mapped files."""


class UncountedTensors:
    """Storages that ``owns`` does not know, watched until they are gone.

    With more than a thousand of them the sum follows the ones that went with a delay; it is never too small.

    Args:
        owns: whether the allocator serves what stands at an address.

    Attributes:
        known: bytes of those that live and of those that went since somebody asked, each rounded up to 64.
    """

    def __init__(self, owns: Callable[[int], bool]) -> None:
        self._owns = owns
        self._watched: dict[int, tuple[Callable[[], bool], Bytes]] = {}
        self.known: Bytes = 0

    @property
    def bytes(self) -> Bytes:
        """Bytes of those that live, each rounded up to 64."""
        self._look(_AT_ONCE)
        return self.known

    def note(self, tensors: Iterable[Any]) -> Bytes:
        """Watch those of ``tensors`` that the allocator did not serve; return `bytes`."""
        for value in tensors:
            if isinstance(value, torch.Tensor) and (storage := _storage_here(value)) is not None:
                self._watch(value, storage)
        self._look(_AT_ONCE)
        return self.known

    def search(self) -> None:
        """Watch every such tensor that Python knows, and look at all that are watched."""
        mapped = _MappedFiles()
        with _real_tensors():
            for tensor, storage in _python_storages():
                if not mapped.holds(storage):
                    self._watch(tensor, storage)
        self._look(len(self._watched))

    def _watch(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        address = storage.data_ptr()
        known = self._watched.get(address)
        if not address or (known is not None and not known[0]()) or self._owns(address):
            return
        self.known += round_up(storage.nbytes()) - (known[1] if known is not None else 0)
        gone = _for_ever if _probes.gone(("storages",)) else _torch.watch_storage(tensor)
        self._watched[address] = (gone, round_up(storage.nbytes()))

    def _look(self, number: int) -> None:
        """Let go of those that are gone, among the ``number`` that were not looked at for longest."""
        for _ in range(min(number, len(self._watched))):
            address = next(iter(self._watched))
            gone, size = self._watched.pop(address)
            if gone():
                self.known -= size
            else:
                self._watched[address] = (gone, size)


def _for_ever() -> bool:
    """Take a tensor for one that lives, where torch does not tell when its storage goes."""
    return False


def _real_tensors() -> AbstractContextManager[None]:
    """Leave the capture that this may be called in; there is none where a name for that is gone."""
    lacking = _probes.gone(("ops that run", "shapes without values"))
    return nullcontext() if lacking else _torch.real_tensors()


def uncounted_bytes(owns: Callable[[int], bool] | None) -> Bytes:
    """Sum the storages of the CPU tensors that Python knows and the allocator does not serve.

    Each storage counts once, rounded up to 64 bytes. With None, every CPU tensor counts.
    """
    mapped = _MappedFiles()
    sizes = {
        storage.data_ptr(): storage.nbytes() for _, storage in _python_storages() if not mapped.holds(storage)
    }
    return sum(round_up(size) for address, size in sizes.items() if owns is None or not owns(address))


def _python_storages() -> Iterator[tuple[torch.Tensor, torch.UntypedStorage]]:
    """List the tensors in the CPU's memory that Python knows, with their storages."""
    for tensor in _python_tensors():
        if (storage := _storage_here(tensor)) is not None:
            yield tensor, storage


def _storage_here(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Find the storage of a tensor; None: it is not in the CPU's memory, or takes none of its own."""
    try:
        storage = tensor.untyped_storage()
        return storage if storage.device.type == "cpu" and storage.data_ptr() else None
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, a wrapper, or not initialized
        return None


def _python_tensors() -> Iterator[torch.Tensor]:
    kinds = _Kinds()
    for value in [value for value in gc.get_objects() if kinds[type(value)]]:
        yield value
        if value.is_leaf and value.grad is not None:
            yield value.grad


class _Kinds(dict[type, bool]):
    """Whether the values of a class are tensors: asking Python for each object takes longer."""

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, torch.Tensor)
        return found


class _MappedFiles:
    """The parts of this process's memory that show files; read when the first large storage asks."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] | None = None

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Tell whether a large storage is a mapped file."""
        if storage.nbytes() < _SEARCHED:
            return False
        if self._ranges is None:
            self._ranges = sorted(_file_ranges())
        address = storage.data_ptr()
        at = bisect_right(self._ranges, (address, 2**64)) - 1
        return at >= 0 and address < self._ranges[at][1]


def _file_ranges(maps: Path = Path("/proc/self/maps")) -> Iterator[tuple[int, int]]:
    """List where files on a disk are mapped; shared memory is no such file."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:  # not Linux: every storage counts
        return
    for line in lines:
        place, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].startswith("/") and not name[0].startswith(("/dev/shm/", "/memfd:", "/SYSV")):
            start, _, end = place.partition("-")
            yield int(start, 16), int(end, 16)
