"""Prices on disk: measured once per op, shapes, dtypes, processor, threads and versions."""

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from tightrope.core import PlanFileError
from tightrope.native import cache_folder
from tightrope.price.measure import Layout, Measured

_LIMIT = 64 * 2**20
_LAYOUT = 3
"""Version of what the fields of a price mean; their names tell files apart too."""
_Version = tuple[int, int, int]
_KNOWN: dict[Path, tuple[_Version, dict[str, Measured]]] = {}
"""What was read last from a file, until the file changes: a large one takes 0.1 s, for each graph."""


class PriceStore:
    """Prices of one environment (device, processor, threads, versions), kept in one file.

    A damaged file is refused with its name; deleting it costs only the time to measure again.
    """

    def __init__(self, environment: tuple[tuple[str, str], ...], folder: Path | None = None) -> None:
        fields = (Measured.__struct_fields__, Layout.__struct_fields__)
        name = hashlib.sha256(repr((_LAYOUT, fields, sorted(environment))).encode()).hexdigest()[:16]
        self.path = (folder or cache_folder()) / f"prices-{name}.json"
        self.prices: dict[str, Measured] = {}
        self.changed = False
        if self.path.is_file():
            self.prices = _read(self.path)

    def get(self, key: str) -> Measured | None:
        """Look up a price."""
        return self.prices.get(key)

    def put(self, key: str, price: Measured) -> None:
        """Keep a price until `save`."""
        self.prices[key] = price
        self.changed = True

    def save(self) -> None:
        """Write the prices; a folder that cannot be written only costs the next run its time."""
        if not self.changed:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(self.prices))
            os.replace(name, self.path)
        except OSError:
            return
        self.changed = False


def _read(path: Path) -> dict[str, Measured]:
    status = path.stat()
    version = (status.st_ino, status.st_mtime_ns, status.st_size)
    if path not in _KNOWN or _KNOWN[path][0] != version:
        if status.st_size > _LIMIT:
            raise PlanFileError(f"price file {path.name} is larger than 64 MiB: delete it.")
        try:
            _KNOWN[path] = version, msgspec.json.decode(path.read_bytes(), type=dict[str, Measured])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise PlanFileError(f"price file {str(path)!r} is damaged ({error}): delete it.") from error
    return dict(_KNOWN[path][1])


class FreshPrices(PriceStore):
    """Prices that are measured again, whatever the disk says, and then replace what it says."""

    def __init__(self, environment: tuple[tuple[str, str], ...]) -> None:
        super().__init__(environment)
        self._new: set[str] = set()

    def get(self, key: str) -> Measured | None:
        """Look up a price measured since this store was made."""
        return super().get(key) if key in self._new else None

    def put(self, key: str, price: Measured) -> None:
        """Keep a new price until `save`."""
        self._new.add(key)
        super().put(key, price)
