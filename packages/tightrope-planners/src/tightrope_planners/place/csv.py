"""Read and write placement instances as CSV, in the format of MiniMalloc.

Columns ``id,lower,upper,size`` in any order, with optional ``alignment``, ``offset``, ``hint`` and
``gaps``. Lifetimes are half-open; a column named ``end`` instead of ``upper`` holds the last instant
itself; only one of the two may be there. An empty cell of ``offset`` or ``hint``, and -1, mean none. A gap
is ``lower-upper``, or ``lower-upper@low:high`` when the bytes ``[low, high)`` of the buffer stay in use.
Either line ending is accepted; files written here end lines with LF.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.place.placer import Interval
from tightrope_planners.place.instance import Gap, Instance
from tightrope_planners.place.source import open_target, read_source

_MAX_ROWS: Final = 4_000_000
_MAX_GAPS: Final = 1000
_LARGEST: Final = 2**62
_NEEDED: Final = ("lower", "upper", "size")
_PLAIN: Final = (*_NEEDED, "id", "alignment", "offset")
_OTHER_NAMES: Final = {"begin": "lower", "start": "lower", "buffer": "id", "buffer_id": "id"}
_GAP: Final = re.compile(r"(-?\d{1,19})-(-?\d{1,19})(?:@(\d{1,19}):(\d{1,19}))?")


def read_csv(path: str | Path) -> Instance:
    """Read an instance.

    Args:
        path: a CSV file, gzipped or not.

    Returns:
        The buffers in file order.

    Raises:
        TightropeError: no such file, a missing or repeated column, a value that is not an integer
            in range, or more than 4,000,000 rows; the message names the line.

    Example:
        >>> read_csv("tight.csv").buffers  # doctest: +SKIP
        ((128, 0, 4), (64, 0, 2))
    """
    return parse_csv(read_source(path), str(path))


def parse_csv(data: bytes, name: str) -> Instance:
    """Read an instance from text; see `read_csv`.

    Args:
        data: the text, UTF-8.
        name: what it is, for messages.
    """
    if data.count(b"\n") > _MAX_ROWS + 1:
        raise TightropeError(f"{name} has more than {_MAX_ROWS:,} rows.")
    try:
        return _parse(io.StringIO(data.decode("utf-8-sig"), newline=""), name)
    except (UnicodeDecodeError, csv.Error) as error:
        raise TightropeError(f"cannot read {name!r} as CSV: {error}. Give a CSV file in UTF-8.") from error


def write_csv(path: str | Path, instance: Instance, offsets: Sequence[Offset] | None = None) -> None:
    """Write an instance, and where its buffers were placed.

    An instance that came from a CSV file keeps all of that file's columns.

    Args:
        path: the file to write; a name that ends in ``.gz`` is compressed.
        instance: what to write.
        offsets: one per buffer; None = those of the instance, left out when it has none.

    Raises:
        TightropeError: the file cannot be written, or there is not one offset per buffer.
    """
    placed = instance.offsets if offsets is None else tuple(offsets)
    if len(placed) != len(instance.buffers):
        raise TightropeError(f"{len(placed)} offsets for {len(instance.buffers)} buffers: one per buffer.")
    shown = [str(offset) if offset >= 0 else "" for offset in placed] if max(placed, default=-1) >= 0 else []
    with open_target(path) as text:
        csv.writer(text, lineterminator="\n").writerows(_table(instance, shown))


def _table(instance: Instance, shown: Sequence[str]) -> Iterator[Sequence[str | int]]:
    """Yield the header and the rows, with the offsets in a column of their own."""
    rows = iter(instance.table or _columns(instance))
    header = next(rows)
    at = [name.strip().lower() for name in map(str, header)].index("offset") if _has_offset(header) else -1
    if not shown:
        yield header
        yield from rows
        return
    yield header if at >= 0 else (*header, "offset")
    for row, offset in zip(rows, shown, strict=True):
        yield (*row[:at], offset, *row[at + 1 :]) if at >= 0 else (*row, offset)


def _has_offset(header: Sequence[str | int]) -> bool:
    return any(str(name).strip().lower() == "offset" for name in header)


def _columns(instance: Instance) -> Iterator[Sequence[str | int]]:
    aligned = any(alignment != 1 for alignment in instance.alignments)
    yield ("id", "lower", "upper", "size", *(("alignment",) if aligned else ()))
    for name, (size, start, end), alignment in zip(
        instance.names, instance.buffers, instance.alignments, strict=True
    ):
        yield (name, start, end, size, *((alignment,) if aligned else ()))


def _parse(text: io.StringIO, path: str) -> Instance:
    reader = csv.reader(text, strict=True)
    original = next(reader, [])
    header = [name.strip().lower() for name in original]
    last = "end" in header
    if last and "upper" in header:
        raise TightropeError(
            f"{path}: the first line names both upper (exclusive) and end (inclusive): keep one of them."
        )
    header = ["upper" if name == "end" and last else _OTHER_NAMES.get(name, name) for name in header]
    missing = [name for name in _NEEDED if name not in header]
    if missing or len(set(header)) != len(header):
        raise TightropeError(
            f"{path}: the first line must name the columns id,lower,upper,size (and perhaps alignment, "
            f"offset, hint, gaps) once each; it has {','.join(original)[:120]!r}."
        )
    rows = _CsvRows(path, {name: at for at, name in enumerate(header)}, last)
    keep = last or header != [name for name in ("id", *_NEEDED, *_PLAIN[4:]) if name in header]
    cells: list[tuple[str, ...]] = [tuple(original)] if keep else []
    for line, row in _lines(reader, len(header), path):
        rows.add(line, row)
        if keep:
            cells.append(tuple(row))
    return rows.instance(tuple(cells))


class _CsvRows:
    """Collects the rows of a file."""

    def __init__(self, path: str, places: dict[str, int], last: bool) -> None:
        self.path, self.places, self.last = path, places, last
        self.buffers: list[Interval] = []
        self.names: list[str] = []
        self.alignments: list[Bytes] = []
        self.offsets: list[Offset] = []
        self.hints: list[Offset] = []
        self.gaps: list[tuple[Gap, ...]] = []

    def add(self, line: int, row: list[str]) -> None:
        places = self.places
        lower, upper, size = (self._integer(row[places[name]], name, line) for name in _NEEDED)
        upper += self.last
        if size < 0 or upper <= lower:
            raise TightropeError(f"{self.path}, line {line}: needs size >= 0 and lower < upper (half-open).")
        self.buffers.append((size, lower, upper))
        self.names.append(row[places["id"]].strip() if "id" in places else str(len(self.names)))
        self.alignments.append(self._optional(row, "alignment", 1, line))
        self.offsets.append(self._free_or(row, "offset", line))
        if "hint" in places:
            self.hints.append(self._free_or(row, "hint", line))
        if "gaps" in places:
            self.gaps.append(tuple(self._gaps(row[places["gaps"]], self.buffers[-1], line)))

    def instance(self, cells: tuple[tuple[str, ...], ...]) -> Instance:
        return Instance(
            tuple(self.buffers),
            tuple(self.names),
            tuple(self.alignments),
            tuple(self.offsets),
            tuple(self.hints),
            tuple(self.gaps),
            table=cells,
        )

    def _gaps(self, text: str, buffer: Interval, line: int) -> Iterator[Gap]:
        size, start, end = buffer
        words = text.split()
        reached = start
        if len(words) > _MAX_GAPS:
            raise TightropeError(f"{self.path}, line {line}: more than {_MAX_GAPS} gaps.")
        found = [self._gap(word, line) for word in words]
        for gap in sorted(found):
            if not (reached <= gap[0] < gap[1] <= end and 0 <= gap[2] <= gap[3] <= size):
                raise TightropeError(
                    f"{self.path}, line {line}: gap {gap[0]}-{gap[1]} must lie in the lifetime, apart from "
                    "other gaps. What stays in use must lie inside the buffer."
                )
            reached = gap[1]
            yield gap

    def _gap(self, word: str, line: int) -> Gap:
        match = _GAP.fullmatch(word)
        if match is None:
            raise TightropeError(f"{self.path}, line {line}: gap {word[:40]!r} is not lower-upper@low:high.")
        start, end, low, high = (int(group or 0) for group in match.groups())
        return start, end + self.last, low, high

    def _optional(self, row: list[str], name: str, default: int, line: int) -> int:
        text = row[self.places[name]].strip() if name in self.places else ""
        value = self._integer(text, name, line) if text else default
        if value < 0:
            raise TightropeError(f"{self.path}, line {line}: {name} is {value}: it must not be negative.")
        return value

    def _free_or(self, row: list[str], name: str, line: int) -> Offset:
        """Read an offset; an empty cell and -1 say that there is none."""
        text = row[self.places[name]].strip() if name in self.places else ""
        value = self._integer(text, name, line) if text else -1
        if value < -1:
            raise TightropeError(
                f"{self.path}, line {line}: {name} is {value}: give 0 or more; -1 or an empty cell is none."
            )
        return value

    def _integer(self, text: str, name: str, line: int) -> int:
        digits = text.strip()
        if len(digits) <= 20 and digits.removeprefix("-").isdecimal() and abs(int(digits)) <= _LARGEST:
            return int(digits)
        raise TightropeError(
            f"{self.path}, line {line}: {name} is {text[:40]!r}, not an integer of at most 2^62."
        )


def _lines(rows: Iterator[list[str]], width: int, path: str) -> Iterator[tuple[int, list[str]]]:
    """Number the rows from line 2; blank lines are skipped."""
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != width:
            raise TightropeError(
                f"{path}, line {line}: {len(row)} values, but the header names {width} columns."
            )
        yield line, row
