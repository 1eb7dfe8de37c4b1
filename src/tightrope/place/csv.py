"""Read and write placement instances as CSV, in the format of MiniMalloc.

Columns ``id,lower,upper,size`` in any order, with optional ``alignment`` and ``offset``. Lifetimes
are half-open. Gzip and either line ending are accepted; files written here end lines with LF.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TextIO

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.place.options import PlaceOptions
from tightrope.place.placer import Interval, Placement, place

_MAX_ROWS: Final = 10**7
_LARGEST: Final = 2**62
_NEEDED: Final = ("lower", "upper", "size")
_OPTIONAL: Final = ("id", "alignment", "offset")


@dataclass(frozen=True, slots=True)
class Instance:
    """Buffers read from a file.

    Attributes:
        buffers: (size in bytes, start, end), half-open, in file order.
        names: the ``id`` column, or the row numbers.
        alignments: one per buffer; 1 where the file has none.
        offsets: one per buffer; -1 where the file has none.
    """

    buffers: tuple[Interval, ...]
    names: tuple[str, ...]
    alignments: tuple[Bytes, ...]
    offsets: tuple[Offset, ...]


def read_csv(path: str | Path) -> Instance:
    """Read an instance.

    Args:
        path: a CSV file, gzipped or not.

    Returns:
        The buffers in file order.

    Raises:
        TightropeError: no such file, a missing or repeated column, a value that is not an integer
            in range, or more than 10^7 rows; the message names the line.

    Example:
        >>> read_csv("tight.csv").buffers  # doctest: +SKIP
        ((128, 0, 4), (64, 0, 2))
    """
    file = Path(path)
    try:
        with file.open("rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with (
            gzip.open(file, "rt", encoding="utf-8", newline="")
            if zipped
            else file.open(encoding="utf-8", newline="") as text
        ):
            return _parse(text, str(path))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise TightropeError(f"cannot read {str(path)!r} as CSV: {error}.") from error


def write_csv(path: str | Path, instance: Instance, offsets: Sequence[Offset] | None = None) -> None:
    """Write an instance, and where its buffers were placed.

    Args:
        path: the file to write; a name that ends in ``.gz`` is compressed.
        instance: what to write.
        offsets: one per buffer; None = those of the instance, left out when it has none.

    Raises:
        TightropeError: the file cannot be written.
    """
    placed = instance.offsets if offsets is None else tuple(offsets)
    header = ["id", "lower", "upper", "size"]
    columns: list[Sequence[str | int]] = [
        instance.names,
        [start for _, start, _ in instance.buffers],
        [end for _, _, end in instance.buffers],
        [size for size, _, _ in instance.buffers],
    ]
    if any(alignment != 1 for alignment in instance.alignments):
        header.append("alignment")
        columns.append(instance.alignments)
    if any(offset >= 0 for offset in placed):
        header.append("offset")
        columns.append([offset if offset >= 0 else "" for offset in placed])
    file = Path(path)
    try:
        with (
            gzip.open(file, "wt", encoding="utf-8", newline="")
            if file.suffix == ".gz"
            else file.open("w", encoding="utf-8", newline="") as text
        ):
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(zip(*columns, strict=True))
    except OSError as error:
        raise TightropeError(f"cannot write {str(path)!r}: {error}.") from error


def place_file(
    path: str | Path,
    *,
    capacity: Bytes | None = None,
    minimize: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
    options: PlaceOptions | None = None,
) -> tuple[Instance, Placement]:
    """Place the buffers of a CSV file; offsets given in the file stay fixed.

    Args:
        path: see `read_csv`.
        capacity: bytes to fit into.
        minimize: keep lowering the peak after the capacity is reached.
        seconds: limit on the effort, see `place`.
        seed: of the random orders.
        options: techniques to switch off.

    Returns:
        The instance and its placement. With ``minimize`` and a capacity, the status says whether
        the smallest peak found fits: ``infeasible`` only when that is proved.

    Raises:
        TightropeError: the file or a buffer is malformed.
    """
    instance = read_csv(path)
    placement = place(
        instance.buffers,
        capacity=None if minimize else capacity,
        seconds=seconds,
        seed=seed,
        alignments=instance.alignments,
        fixed={index: offset for index, offset in enumerate(instance.offsets) if offset >= 0},
        options=options,
    )
    if minimize and capacity is not None and placement.peak > capacity:
        proved = placement.status == "optimal" or placement.lower_bound > capacity
        placement = replace(placement, status="infeasible" if proved else "time_limit")
    return instance, placement


def _parse(text: TextIO, path: str) -> Instance:
    rows = csv.reader(text, strict=True)
    header = [name.strip().lower() for name in next(rows, [])]
    missing = [name for name in _NEEDED if name not in header]
    if missing or len(set(header)) != len(header):
        raise TightropeError(
            f"{path}: the first line must name the columns id,lower,upper,size (and perhaps alignment, "
            f"offset) once each; it has {','.join(header)[:120]!r}."
        )
    places: dict[str, int] = {name: header.index(name) for name in (*_NEEDED, *_OPTIONAL) if name in header}
    buffers: list[Interval] = []
    names: list[str] = []
    alignments: list[Bytes] = []
    offsets: list[Offset] = []
    for line, row in _rows(rows, len(header), path):
        lower, upper, size = (_integer(row[places[name]], name, line, path) for name in _NEEDED)
        if size < 0 or upper <= lower:
            raise TightropeError(f"{path}, line {line}: needs size >= 0 and lower < upper (half-open).")
        buffers.append((size, lower, upper))
        names.append(row[places["id"]].strip() if "id" in places else str(len(names)))
        alignments.append(_optional(row, places, "alignment", 1, line, path))
        offsets.append(_optional(row, places, "offset", -1, line, path))
    return Instance(tuple(buffers), tuple(names), tuple(alignments), tuple(offsets))


def _rows(rows: Iterator[list[str]], width: int, path: str) -> Iterator[tuple[int, list[str]]]:
    """Number the rows from line 2; blank lines are skipped."""
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if line > _MAX_ROWS + 1:
            raise TightropeError(f"{path} has more than {_MAX_ROWS:,} rows.")
        if len(row) != width:
            raise TightropeError(
                f"{path}, line {line}: {len(row)} values, but the header names {width} columns."
            )
        yield line, row


def _optional(row: list[str], places: dict[str, int], name: str, default: int, line: int, path: str) -> int:
    text = row[places[name]].strip() if name in places else ""
    return _integer(text, name, line, path) if text else default


def _integer(text: str, name: str, line: int, path: str) -> int:
    digits = text.strip()
    if len(digits) <= 20 and digits.removeprefix("-").isdecimal() and abs(int(digits)) <= _LARGEST:
        return int(digits)
    raise TightropeError(f"{path}, line {line}: {name} is {text[:40]!r}, not an integer of at most 2^62.")
