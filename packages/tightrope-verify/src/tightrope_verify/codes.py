"""Byte code: digests of code objects, and whether a ``.pyc`` is what its source compiles to.

Idea        A source file is compiled again, and the code object compared with the one that would run.
            Both are written by ``marshal`` in version 2, which has no references: equal code has equal bytes.
Guarantee   A ``.pyc`` that Python would load, and that is not what its source compiles to, differs.
Complexity  One compilation: about 9 MB of source per second; the comparison takes a fiftieth of that.
Gaps        Byte code of other interpreters is not read. A ``.pyc`` is parsed by ``marshal``, which does not
            execute anything, but may end the process where the file is damaged on purpose.
"""

import importlib.util
import marshal
import os
import struct
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Final

from tightrope.core import Bytes
from tightrope_verify.captured import code_digest
from tightrope_verify.findings import digest_of

_HEAD: Final = 16
_CHECKED: Final = 2
"""Flag of a ``.pyc`` that is compared with the hash of its source before it is loaded."""
_UNCHECKED: Final = 1


@lru_cache(maxsize=64)
def compiled(source: bytes, name: str, optimize: int = -1) -> CodeType:
    """Compile source text as import does, and keep it.

    Raises:
        SyntaxError: it is no Python of this version.
        ValueError: it holds a zero byte.
    """
    return _compile(source, name, optimize)


def _compile(source: bytes, name: str, optimize: int) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(source, name, "exec", dont_inherit=True, optimize=optimize)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """List a code object and every one inside of it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes_in(one)


def level_of(bytecode: str, interpreter: str) -> tuple[str, int] | None:
    """Read the name of a file in ``__pycache__``: the source's stem, and the level of optimization.

    >>> level_of("net.cpython-311.opt-1.pyc", "cpython-311")
    ('net', 1)
    >>> level_of("net.cpython-39.pyc", "cpython-311") is None
    True
    """
    stem = bytecode.removesuffix(".pyc")
    for level, end in ((0, f".{interpreter}"), (1, f".{interpreter}.opt-1"), (2, f".{interpreter}.opt-2")):
        if stem.endswith(end):
            return stem.removesuffix(end), level
    return None


def is_ours(interpreter: str) -> bool:
    """Whether this interpreter can read the byte code of that one."""
    return interpreter == sys.implementation.cache_tag


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


class Bytecode:
    """A ``.pyc`` with what decides whether Python loads it.

    Args:
        path: of the file.
        source: of its source.

    Raises:
        OSError: one of them cannot be read.
    """

    def __init__(self, path: str | Path, source: str | Path) -> None:
        self.path, self.source = str(path), str(source)
        self._data = _read(self.path)

    @property
    def size(self) -> Bytes:
        """Of the file."""
        return len(self._data)

    @property
    def digest(self) -> str:
        """Of what follows the head."""
        return digest_of(self._data[_HEAD:])

    def is_loaded(self) -> bool:
        """Whether Python would load it, rather than compile the source."""
        data = self._data
        if len(data) < _HEAD or data[:4] != importlib.util.MAGIC_NUMBER:
            return False
        flags, first, second = struct.unpack("<III", data[4:_HEAD])
        if flags == _UNCHECKED:
            return True
        if flags == _UNCHECKED | _CHECKED:
            return bool(data[8:_HEAD] == importlib.util.source_hash(_read(self.source)))
        state = os.stat(self.source)
        wanted = int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF
        return flags == 0 and wanted == (first, second)

    def code(self) -> CodeType | None:
        """Read its code object; None where there is none."""
        try:
            found = marshal.loads(self._data[_HEAD:])
        except (ValueError, EOFError, TypeError):
            return None
        return found if isinstance(found, CodeType) else None

    def _is_as_written(self, level: int) -> bool:
        """Whether it is byte for byte what import writes, as almost all are; they need not be parsed."""
        if os.fsencode(self.source) not in self._data:
            return False
        with suppress(SyntaxError, ValueError):
            fresh = _compile(_read(self.source), self.source, level)
            return marshal.dumps(fresh) == self._data[_HEAD:]
        return False

    def compare(self, level: int) -> tuple[str, str]:
        """Compile the source and give both digests, of fresh and of found code; equal = it is the same."""
        if self._is_as_written(level):
            return "", ""
        try:
            found = marshal.loads(self._data[_HEAD:])
        except (ValueError, EOFError, TypeError) as error:
            return "byte code", f"damaged: {error}"
        if not isinstance(found, CodeType):
            return "byte code", f"a {type(found).__name__}"
        try:
            fresh = _compile(_read(self.source), found.co_filename, level)
        except (SyntaxError, ValueError) as error:
            return f"none, as the source does not compile: {error}", code_digest(found)
        if marshal.dumps(fresh, 2) == marshal.dumps(found, 2):
            return "", ""
        expected, have = code_digest(fresh), code_digest(found)
        return (expected, have) if expected != have else (f"{expected} with its lines", f"{have} with others")
