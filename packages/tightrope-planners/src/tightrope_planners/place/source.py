"""Files of this room: read with a limit and unzipped where needed, written and zipped by their name."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from tightrope.core import Bytes, TightropeError
from tightrope.core.writing import replacing

MAX_BYTES: Final[Bytes] = 512 * 2**20


def read_source(path: str | Path) -> bytes:
    """Read a file, and unzip it when it is gzipped.

    Args:
        path: a regular file.

    Returns:
        At most 512 MiB.

    Raises:
        TightropeError: there is no such file, it cannot be read, or it is larger.

    Example:
        >>> read_source("instance.csv.gz")[:2]  # doctest: +SKIP
        b'id'
    """
    content = read_start(path, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise TightropeError(f"{str(path)!r} holds more than {MAX_BYTES} bytes, the most that is read.")
    return content


def read_start(path: str | Path, size: Bytes) -> bytes:
    """Read at most the first ``size`` bytes of a file, unzipped where it is gzipped.

    Raises:
        TightropeError: there is no such file, or it cannot be read.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise TightropeError(f"cannot read {str(path)!r}: it is not a file.")
        with file.open("rb") as stream:
            zipped = stream.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if zipped else file.open("rb") as data:
            return data.read(size)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TightropeError(f"cannot read {str(path)!r}: {error}. Give the whole file.") from error


@contextmanager
def open_target(path: str | Path) -> Iterator[TextIOWrapper]:
    """Open a file to write UTF-8 text to; a name that ends in ``.gz`` is compressed.

    Lines end as they are written, and equal text gives equal bytes. The file takes its place when all is
    written.

    Raises:
        TightropeError: the file cannot be written.
    """
    try:
        with replacing(path) as file:
            zipped = Path(path).suffix == ".gz"
            raw = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if zipped else file
            with raw, TextIOWrapper(raw, encoding="utf-8", newline="") as text:
                yield text
    except OSError as error:
        raise TightropeError(f"cannot write {str(path)!r}: {error}.") from error
