"""Libraries that a wheel brings: which of them belongs to the sources and the torch that are installed.

They lie in ``libraries/`` with a manifest, which ``native_wheel.py`` writes. A source checkout has none.
"""

import functools
import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Final

import msgspec

from tightrope.core import NativeError

SOURCES: Final = Path(__file__).parent
LIBRARIES: Final = SOURCES / "libraries"
MANIFEST: Final = "manifest.json"
_INCLUDE: Final = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_VERSION: Final = re.compile(r"""^__version__ = ['"](\d+\.\d+)\.\d+(\+\S*)?['"]""", re.MULTILINE)
"""Of a release: nothing fits one that is not out yet, as its headers may still change."""


class BuiltLibrary(msgspec.Struct, frozen=True):
    """One library of a wheel.

    Attributes:
        name: of its source, without the ending.
        sources: hash of all files that it was built from.
        torch: the minor version of torch whose headers it was built with; empty = it knows nothing of torch.
    """

    name: str
    sources: str
    torch: str = ""

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}-torch{self.torch}.so" if self.torch else f"{self.name}.so"


def prebuilt(name: str) -> Path | None:
    """Find the library that the wheel brings for a source, as it is installed, and for the installed torch.

    Args:
        name: of the source, without the ending.

    Returns:
        Its path, or None where none fits: it is then built.

    Example:
        >>> prebuilt("no such source") is None
        True
    """
    listed = [library for library in _manifest() if library.name == name]
    if not listed:
        return None
    source = next(SOURCES.rglob(f"{name}.cpp"), None)
    if source is None:
        return None
    sources = hash_of(source)
    fitting = (one for one in listed if one.sources == sources and one.torch in ("", torch_minor()))
    return next((file for one in fitting if (file := LIBRARIES / one.file).is_file()), None)


def _manifest() -> list[BuiltLibrary]:
    file = LIBRARIES / MANIFEST
    return read(file) if file.is_file() else []


def read(file: Path) -> list[BuiltLibrary]:
    """Read a manifest.

    Raises:
        NativeError: it is no manifest.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[BuiltLibrary])
    except msgspec.DecodeError as error:
        raise NativeError(f"{file} is damaged ({error}): install tightrope again.") from error


def read_by(source: Path) -> list[Path]:
    """List the source and every file that it includes by a name in quotes, directly or not."""
    files = [source.resolve()]
    for file in files:
        included = ((file.parent / name).resolve() for name in _INCLUDE.findall(file.read_text("utf-8")))
        files.extend(path for path in included if path not in files)
    return files


def hash_of(source: Path) -> str:
    """Hash all files that a library is built from."""
    digest = hashlib.sha256()
    for file in read_by(source):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


@functools.cache
def torch_folder() -> Path:
    """Find the installed torch: it is not imported.

    Raises:
        NativeError: there is none.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NativeError("torch is not installed, and the allocator is built against its headers.")
    return Path(spec.origin).parent


def torch_minor(folder: Path | None = None) -> str:
    """Read the minor version of a release of torch, such as "2.13"; of anything else, "none"."""
    text = ((folder or torch_folder()) / "version.py").read_text("utf-8")
    found = _VERSION.search(text)
    return found[1] if found else "none"
