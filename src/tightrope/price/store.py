"""Prices on disk: measured once per op, shapes, dtypes, processor, threads and versions."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from tightrope.core import PlanFileError
from tightrope.core.cache import Folder, own_folder
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

    Attributes:
        name: of the file.
        prices: by op.
        changed: whether there are new ones.
    """

    def __init__(self, environment: tuple[tuple[str, str], ...], folder: Path | None = None) -> None:
        fields = (Measured.__struct_fields__, Layout.__struct_fields__)
        name = hashlib.sha256(repr((_LAYOUT, fields, sorted(environment))).encode()).hexdigest()[:16]
        self.name = f"prices-{name}.json"
        self._folder = own_folder() if folder is None else Folder(folder)
        self.prices = {} if self._folder is None else _read(self._folder, self.name)
        self.changed = False

    def get(self, key: str) -> Measured | None:
        """Look up a price."""
        return self.prices.get(key)

    def put(self, key: str, price: Measured) -> None:
        """Keep a price until `save`."""
        self.prices[key] = price
        self.changed = True

    def save(self) -> None:
        """Write the prices; a folder that cannot be written only costs the next run its time."""
        if not self.changed or self._folder is None:
            return
        with suppress(OSError):
            self._folder.write(self.name, msgspec.json.encode(self.prices))
            self.changed = False


def _read(folder: Folder, name: str) -> dict[str, Measured]:
    path = folder.path / name
    try:
        with folder.opened(name) as stream:
            status = os.fstat(stream.fileno())
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if path in _KNOWN and _KNOWN[path][0] == version:
                return dict(_KNOWN[path][1])
            if status.st_size > _LIMIT:
                raise PlanFileError(f"price file {str(path)!r} is larger than 64 MiB: delete it.")
            _KNOWN[path] = version, msgspec.json.decode(stream.read(_LIMIT), type=dict[str, Measured])
    except OSError:
        return {}  # there is none, or somebody else can have written it
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
