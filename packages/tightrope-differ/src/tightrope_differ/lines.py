"""Which lines are the user's, and what other people's code says about itself."""

import logging
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final

_FOREIGN: Final = tuple(
    {*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), str(Path(__file__).parent)}
)
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


@cache
def is_foreign(file: str) -> bool:
    """Tell whether a file belongs to Python, to what is installed, or to us."""
    return file.startswith(("<", *_FOREIGN)) or "site-packages" in file


@cache
def short(file: str) -> str:
    """Name a file from the current folder, where it lies there."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def user_line(frame: FrameType | None) -> str:
    """Find the innermost line that is the user's: of no library, of no file of ours."""
    while frame is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def line_of(trace: str) -> str:
    """Find the user's innermost line in a stack trace; empty where no file of it is the user's."""
    mine = [f"{short(file)}:{line}" for file, line in _FRAME.findall(trace) if not is_foreign(file)]
    return mine[-1] if mine else ""


def where_it_failed(error: BaseException) -> str:
    """Say what failed, and at which line of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f" at {short(one.filename)}:{one.lineno}" for one in frames if not is_foreign(one.filename)]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{''.join(mine[-1:])}"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what exporters and compilers say about themselves to themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
