"""Refuse arguments of the public functions: name the argument, quote what came, say what to give.

They are checked before anything else happens, so a wrong one never turns up as an error from within.
"""

import math
import os
from contextlib import suppress
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Final, NoReturn

from tightrope.core.errors import TightropeError
from tightrope.core.json_text import MAX_INT
from tightrope.core.units import is_whole, shown

MOST_SECONDS: Final = 1_000_000
"""Some eleven days: who asks for more meant something else."""


def refuse_argument(name: str, value: object, give: str) -> NoReturn:
    """Raise `TightropeError`; ``give`` completes "give ..."."""
    raise TightropeError(f"{name}={shown(value)}: give {give}.")


def check_kind(name: str, value: object, kind: type | UnionType | tuple[type, ...], give: str) -> None:
    """Refuse what is not of a class, and a class itself.

    Raises:
        TightropeError: quotes the value.
    """
    if not isinstance(value, kind):
        refuse_argument(name, value, give)


def check_path(value: object, give: str) -> None:
    """Refuse what is no path.

    Raises:
        TightropeError: quotes the value.
    """
    check_kind("path", value, str | os.PathLike, give)


def check_folder(path: str | Path) -> None:
    """Refuse a file that cannot be written, before any work is done.

    That is one without a name, with a longer one than fits, a folder, one in no folder, or in one where
    nothing may be written.

    Raises:
        TightropeError: quotes the path, or names the folder.
    """
    folder = Path(path).parent
    if not Path(path).name:
        refuse_argument("path", str(path), "the path of the file to write")
    try:
        with suppress(FileNotFoundError):
            os.stat(path)
    except (OSError, ValueError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TightropeError(
            f"no file can be called {shown(str(path))}: {what}. Give another path."
        ) from error
    if not folder.is_dir():
        raise TightropeError(f"no folder {str(folder)!r} to write {Path(path).name!r} in: make it first.")
    if Path(path).is_dir():
        raise TightropeError(f"{str(path)!r} is a folder: give the path of a file to write.")
    if Path(path).is_file() or not Path(path).exists():  # neither a device nor a pipe
        place = Path(os.path.realpath(path)).parent  # files are replaced as a whole
        if not os.access(place, os.W_OK | os.X_OK):
            raise TightropeError(f"the folder {str(place)!r} may not be written to: give another path.")


def check_count(name: str, value: object) -> None:
    """Refuse what is not a whole number from 0 to 2^62.

    Raises:
        TightropeError: quotes the value.
    """
    if not is_whole(value) or not 0 <= value <= MAX_INT:  # type: ignore[operator]
        refuse_argument(name, value, "a whole number, at least 0")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse what is not a number above 0 and at most `MOST_SECONDS`; with ``zero``, 0 is allowed.

    Raises:
        TightropeError: quotes the value.
    """
    number = value if isinstance(value, int) else float(value) if isinstance(value, Real) else math.nan
    if not 0 <= number <= MOST_SECONDS or (number == 0 and not zero):
        give = f"a number of seconds, such as 5{' or 0' * zero}, at most {MOST_SECONDS}"
        refuse_argument(name, value, give)


def check_search(*, seed: object, seconds: object, progress: object = None) -> None:
    """Refuse options of a plan search that are none.

    Raises:
        TightropeError: quotes the value.
    """
    check_count("seed", seed)
    if seconds is not None:
        check_seconds("seconds", seconds)
    if progress is not None and not isinstance(progress, bool):
        refuse_argument("progress", progress, "True, False, or None for the default")
