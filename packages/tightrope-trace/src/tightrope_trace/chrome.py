"""Events of a Chrome trace, read piece by piece.

    {"schemaVersion": 1, ..., "traceEvents": [ {...}, {...} ], "traceName": "..."}    what torch writes
    [ {...}, {...},                                                                  what Chrome reads, too

Idea        Keys before ``traceEvents`` are skipped, however long their values are. Events are decoded
            many at a time: a piece of the file that ends with the end of an event is a list of events
            once brackets are put around it. Where no such end is found, events are told apart one by
            one, which also finds the one that is wrong.
Guarantee   At most a few pieces and one event are held at a time; events, their sizes and all bytes that
            are unpacked have limits. Nothing is executed. What is wrong raises `PlanFileError`, which
            quotes it.
Complexity  Linear.
Gaps        Events that are split into a beginning and an end (``ph`` is B and E) are not put together;
            torch writes none.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from tightrope.core import Bytes, PlanFileError
from tightrope.core.json_text import quote

MAX_UNPACKED: Final[Bytes] = 4 * 2**30
"""Bytes of JSON that are read from a file; a packed one may be far smaller."""
MAX_EVENT: Final[Bytes] = 16 * 2**20
KINDS: Final = frozenset({"cpu_op", "user_annotation", "Operator"})
"""Categories of the events that are slices."""
DRIVERS: Final = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime", "Runtime"})
COPIES: Final = ("cudaMemcpy", "cuMemcpy", "hipMemcpy")
"""Calls of drivers that move bytes between host and device, or on one."""
_PIECE: Final[Bytes] = 2**20
_TRIES: Final = 4
_KEYS: Final = 1000
_GZIP: Final = b"\x1f\x8b"
_SPACE: Final = b" \t\r\n"
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|"', re.DOTALL)
"""A text in quotes, a bracket, or the beginning of a text that ends in what is not read yet."""
_OPENING: Final = frozenset({b"{", b"["})
_CLOSING: Final = frozenset({b"}", b"]"})
_WORD: Final = re.compile(rb"[^,\]}\s]*")


class ChromeEvent(msgspec.Struct, gc=False):
    """One event; only what is used."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    pid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = None


_ROWS: Final = msgspec.json.Decoder(list[ChromeEvent])
_ROW: Final = msgspec.json.Decoder(ChromeEvent)
_ANY: Final = msgspec.json.Decoder()


def open_events(path: str | Path, *, limit: Bytes) -> Iterator[ChromeEvent]:
    """Read the events of a file of at most ``limit`` bytes, packed or not.

    Raises:
        PlanFileError: the file cannot be read, or its text is no Chrome trace.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise PlanFileError(f"{str(path)!r} is not a file: give the path of a profile by torch.profiler.")
        if file.stat().st_size > limit:
            raise PlanFileError(f"{str(path)!r} is larger than {limit} bytes, the most that is read.")
        with file.open("rb") as stream:
            yield from read_events(stream, file.name)
    except (OSError, ValueError) as error:
        raise PlanFileError(f"{str(path)!r} cannot be read: {error}.") from error


def read_events(stream: IO[bytes], name: str) -> Iterator[ChromeEvent]:
    """Read the ops, ranges and copies of a stream; ``name`` is what messages call it.

    Example:
        >>> import io
        >>> text = b'[{"ph": "X", "cat": "cpu_op", "name": "a"}, {"ph": "M", "name": "b"},'
        >>> [row.name for row in read_events(io.BytesIO(text), "x")]
        ['a']
    """
    try:
        yield from _Text(_unpacked(stream), name).rows()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PlanFileError(f"{name}: the packed file is damaged: {quote(str(error))}.") from error


def looks_like_profile(path: str | Path) -> bool:
    """Whether a file is a packed one, a list, or an object that has ``traceEvents`` somewhere."""
    try:
        with Path(path).open("rb") as stream:
            if stream.read(2) == _GZIP:
                return True
            stream.seek(0)
            return _Text(stream, str(path)).at_events()
    except (OSError, ValueError, PlanFileError):
        return False


def _unpacked(stream: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    start = stream.read(len(_GZIP))
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if start == _GZIP else stream


def _is_used(row: ChromeEvent) -> bool:
    if row.ph != "X":
        return False
    return row.cat in KINDS or (row.cat in DRIVERS and row.name.startswith(COPIES))


class _Text:
    """A stream of JSON text, and the piece of it that is being looked at."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, name: str) -> None:
        self.stream, self.name = stream, name
        self.data, self.at, self.total = b"", 0, 0
        self.number = 0
        self.listed = False

    def rows(self) -> Iterator[ChromeEvent]:
        """All events, wherever in the text they stand."""
        if not self.at_events():
            self._refuse("there is no 'traceEvents' in it")
        while True:
            following = self._next(b",")
            if following == b"]":
                return
            if not following:
                if self.listed:
                    return  # Chrome reads lists that nobody closed
                self._refuse(f"the file ends within 'traceEvents', after event {self.number}: it was cut off")
            if following != b"{":
                self._refuse(f"event {self.number} begins with {quote(self._here())}, not with an object")
            yield from self._piece()

    def at_events(self) -> bool:
        """Go to the first event; whether there is a place for events."""
        start = self._next(b"\xef\xbb\xbf")
        if start == b"[":
            self.at, self.listed = self.at + 1, True
            return True
        if start != b"{":
            self._refuse(f"the text begins with {quote(self._here())}")
        self.at += 1
        for _ in range(_KEYS):
            if self._next(b",") != b'"':
                return False
            key = self._string()
            if self._next(b"") != b":":
                self._refuse(f"there is no value for {quote(key)}")
            self.at += 1
            value = self._next(b"")
            if key == "traceEvents":
                if value != b"[":
                    self._refuse(f"'traceEvents' is {quote(self._here())}, not a list")
                self.at += 1
                return True
            self._skip()
        return False

    def _piece(self) -> Iterator[ChromeEvent]:
        """Decode as many events as there are in the text at hand, at least one."""
        if len(self.data) - self.at < _PIECE:
            self._more()
        end = len(self.data)
        for _ in range(_TRIES):
            end = self.data.rfind(b"}", self.at, end)
            if end < 0:
                break
            try:
                found = _ROWS.decode(b"[" + self.data[self.at : end + 1] + b"]")
            except (msgspec.MsgspecError, RecursionError, ValueError):
                continue
            self.at = end + 1
            self.number += len(found)
            yield from filter(_is_used, found)
            return
        yield from filter(_is_used, [self._one()])

    def _one(self) -> ChromeEvent:
        """Decode the event that begins here."""
        start = self._close()
        text = self.data[self.at : self.at + start]
        self.at += start
        self.number += 1
        try:
            return _ROW.decode(text)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            return self._lenient(text, error)

    def _lenient(self, text: bytes, error: Exception) -> ChromeEvent:
        """An event that is no slice may have what it likes in its fields."""
        try:
            value = _ANY.decode(text)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            value = {}
        if isinstance(value, dict) and value and (value.get("ph") != "X" or value.get("cat") not in KINDS):
            return ChromeEvent()
        shown = quote(text[:80].decode("utf-8", "replace"))
        raise PlanFileError(
            f"{self.name}: event {self.number - 1} of this profile, {shown}: {quote(str(error))}."
        ) from error

    def _close(self) -> int:
        """The length of the object or list that begins here, read whole."""
        depth, position = 0, self.at
        while True:
            for token in _TOKEN.finditer(self.data, position):
                if token[0] == b'"':
                    position = token.start()
                    break
                depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
                position = token.end()
                if depth == 0:
                    return position - self.at
            if len(self.data) - self.at > MAX_EVENT:
                self._refuse(f"event {self.number} is longer than {MAX_EVENT} bytes")
            before = self.at
            if not self._more():
                self._refuse(f"the file ends within event {self.number}, {quote(self._here())}")
            position -= before - self.at

    def _skip(self) -> None:
        """Leave out a value, without holding it."""
        start = self._next(b"")
        if start == b'"':
            self._string(keep=False)
        elif start in (b"{", b"["):
            self._skip_nested()
        else:
            self._skip_word()

    def _skip_word(self) -> None:
        """Leave out a number, or ``null`` and its like."""
        while found := _WORD.match(self.data, self.at):
            self.at = found.end()
            if self.at < len(self.data) or not self._more():
                return

    def _skip_nested(self) -> None:
        depth = 0
        while True:
            for token in _TOKEN.finditer(self.data, self.at):
                self.at = token.end()
                if token[0] == b'"':
                    self.at -= 1
                    self._string(keep=False)
                    break
                depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
                if depth == 0:
                    return
            else:
                self.at = len(self.data)
                if not self._more():
                    self._refuse("the file ends within a value before 'traceEvents'")

    def _string(self, *, keep: bool = True) -> str:
        """Read the text in quotes that begins here; a long one is read and not kept."""
        self.at += 1
        kept = b""
        while True:
            end = self.data.find(b'"', self.at)
            slash = self.data.find(b"\\", self.at, end if end >= 0 else len(self.data))
            stop = slash if slash >= 0 else end if end >= 0 else len(self.data)
            if keep and len(kept) < 200:
                kept += self.data[self.at : stop]
            if slash < 0 <= end:
                self.at = end + 1
                return kept[:200].decode("utf-8", "replace")
            self.at = stop + 2 if slash >= 0 else stop
            if self.at >= len(self.data):
                over = self.at - len(self.data)
                self.at = len(self.data)
                if not self._more():
                    self._refuse("the file ends within a text in quotes")
                self.at += over

    def _next(self, skipped: bytes) -> bytes:
        """The next byte that is no space and none of those to be skipped, or nothing at the end."""
        drop = _SPACE + skipped
        while True:
            while self.at < len(self.data):
                if self.data[self.at] not in drop:
                    return self.data[self.at : self.at + 1]
                self.at += 1
            if not self._more():
                return b""

    def _more(self) -> bool:
        """Read on; what was looked at is forgotten. Whether there was more."""
        new = self.stream.read(_PIECE)
        self.total += len(new)
        if self.total > MAX_UNPACKED:
            self._refuse(f"more than {MAX_UNPACKED} bytes of text, the most that is read")
        self.data, self.at = self.data[self.at :] + new, 0
        return bool(new)

    def _here(self) -> str:
        return self.data[self.at : self.at + 60].decode("utf-8", "replace")

    def _refuse(self, what: str) -> None:
        raise PlanFileError(f"{self.name}: not a profile of torch.profiler: {what}.")
