"""Write files whole or not at all: a full disk or an interrupt leaves what was there before."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from tightrope.core.errors import PlanFileError

_SPECIAL: Final = ("/dev/", "/proc/")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its place when the block ends well.

    It keeps the mode of the file that was there, and a link still leads to it. Devices and pipes are written
    as they are.

    Raises:
        OSError: it cannot be written; nothing has changed.
        ValueError: no file can be called so.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with replacing(file) as stream:
        ...     written = stream.write(b"as a whole")
        >>> file.read_bytes()
        b'as a whole'
    """
    given = Path(path)
    if str(given).startswith(_SPECIAL) or (given.exists() and not given.is_file()):
        with given.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(given))
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as stream:
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            yield stream
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file, all of it or nothing; text as UTF-8.

    Raises:
        PlanFileError: it cannot be written; names it.
    """
    try:
        with replacing(path) as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
    except (OSError, ValueError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise PlanFileError(
            f"{os.fspath(path)!r} cannot be written: {what}. Give another path, or make room."
        ) from error
