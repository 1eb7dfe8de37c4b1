"""Bytes of a file from outside, with a limit, unzipped where needed."""

import gzip
import zlib
from pathlib import Path
from typing import Final

from tightrope.core import Bytes, TightropeError

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
    file = Path(path)
    try:
        if not file.is_file():
            raise TightropeError(f"cannot read {str(path)!r}: it is not a file.")
        with file.open("rb") as stream:
            zipped = stream.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if zipped else file.open("rb") as data:
            content = data.read(MAX_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TightropeError(f"cannot read {str(path)!r}: {error}.") from error
    if len(content) > MAX_BYTES:
        raise TightropeError(f"{str(path)!r} holds more than {MAX_BYTES} bytes, the most that is read.")
    return content
