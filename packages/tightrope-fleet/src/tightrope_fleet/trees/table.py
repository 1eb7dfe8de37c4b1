"""Read tables of parties: CSV with a header, or lines of LIBSVM; nothing in them is run."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tightrope.core.errors import TightropeError
from tightrope.core.files import read_file
from tightrope.core.units import Bytes, printable
from tightrope_fleet.csv_text import not_csv
from tightrope_fleet.trees.bins import Floats, Values

MAX_TABLE_BYTES: Final[Bytes] = 512 * 2**20
_MAX_FEATURES: Final = 10_000


@dataclass(frozen=True, slots=True)
class ReadTable:
    """What a file held.

    Attributes:
        features: names of the columns, in order.
        table: ``[rows, features]``; NaN is missing.
        labels: None where there are none.
        ids: of the rows, where the file has a column ``id``.
        weights: None where no column of weights was named.
    """

    features: tuple[str, ...]
    table: Values
    labels: Floats | None
    ids: tuple[str, ...] = ()
    weights: Floats | None = None

    def matched(self, features: Sequence[str], path: str | Path, *, whose: str, bare: bool = False) -> Values:
        """Order the columns as features are, by name.

        Args:
            features: names that are wanted, in order.
            path: of this table, for messages.
            whose: what has those features, for messages.
            bare: whether a column ``a`` also meets the feature ``one.a``, where only one ends so.

        Raises:
            TightropeError: names a column that is missing, or one that nothing asks for.

        Example:
            >>> read = ReadTable(("b", "a"), np.array([[2, 1]], np.float32), None)
            >>> read.matched(("a", "b"), "test.csv", whose="the forest").tolist()
            [[1.0, 2.0]]
        """
        places = {name: at for at, name in enumerate(self.features)}
        short = [name.partition(".")[2] if bare else "" for name in features]
        found = [
            places.get(name, places.get(last) if short.count(last) == 1 else None)
            for name, last in zip(features, short, strict=True)
        ]
        for name, place in zip(features, found, strict=True):
            if place is None:
                raise TightropeError(
                    f"{str(path)!r} has no column {printable(name)!r}, which {whose} has; it has "
                    f"{printable(', '.join(self.features))[:200]}."
                )
        kept = [place for place in found if place is not None]
        if extra := [name for name, at in places.items() if at not in kept]:
            raise TightropeError(
                f"{str(path)!r} has the column {printable(extra[0])!r}, which {whose} has not: remove it."
            )
        if len(set(kept)) < len(kept):
            raise TightropeError(f"{str(path)!r}: one column stands for two features of {whose}; name both.")
        return self.table[:, kept]


def read_table(path: str | Path, *, label: str = "y", weight: str = "", width: int = 0) -> ReadTable:
    """Read a CSV file with a header, or a LIBSVM file (no header; what is not named is 0).

    Args:
        path: the file; ``.csv`` decides.
        label: the column of labels, where there is one; a column ``id`` names rows.
        weight: the column of weights, which has to be there; empty = none.
        width: features of a LIBSVM file; 0 = up to the largest that it names.

    Raises:
        TightropeError: a line has too few or too many columns, or something is no number: names file and
        line. PlanFileError: the file cannot be read.
    """
    text = read_file(path, limit=MAX_TABLE_BYTES)
    try:
        lines = text.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise TightropeError(
            f"{str(path)!r}, line {line}: not UTF-8 text: save the table in UTF-8."
        ) from error
    if not lines:
        raise TightropeError(f"{str(path)!r} is empty: give a table with a header and rows.")
    if str(path).endswith(".csv"):
        return _read_csv(str(path), lines, label, weight)
    if weight:
        raise TightropeError(f"{str(path)!r}: a LIBSVM file has no column {weight!r} of weights: give CSV.")
    return _read_libsvm(str(path), lines, width)


def _read_csv(path: str, lines: list[str], label: str, weight: str) -> ReadTable:
    rows = _csv_rows(path, lines)
    header = [name.strip() for name in next(rows)[1]]
    if len(set(header)) != len(header) or not all(header):
        raise TightropeError(
            f"{path!r}, line 1: column names must be there and differ; found {', '.join(header)[:200]!r}."
        )
    if len(header) > _MAX_FEATURES:
        raise TightropeError(f"{path!r}: {len(header)} columns; at most {_MAX_FEATURES} are read.")
    if weight and (weight not in header or weight in ("id", label)):
        raise TightropeError(
            f"{path!r}, line 1: no column {weight!r} of weights; --weight names none of id, {label!r}."
        )
    features = tuple(name for name in header if name not in ("id", label, *([weight] if weight else [])))
    numbers: list[list[float]] = []
    ids: list[str] = []
    places: list[int] = []
    for line, row in rows:
        if len(row) != len(header):
            raise TightropeError(
                f"{path!r}, line {line}: {len(row)} columns where the header has {len(header)}"
                + (f"; the first missing one is {header[len(row)]!r}." if len(row) < len(header) else ".")
            )
        cells = dict(zip(header, row, strict=True))
        places.append(line)
        ids += [cells["id"]] if "id" in cells else []
        numbers.append([_number(cells[name], path, line, name) for name in header if name != "id"])
    if not numbers or not features:
        raise TightropeError(
            f"{path!r}: {len(numbers)} rows and {len(features)} features: a table needs both."
        )
    values = np.array(numbers)
    kept = [name for name in header if name != "id"]
    labels = values[:, kept.index(label)] if label in kept else None
    if labels is not None and np.isnan(labels).any():
        raise TightropeError(
            f"{path!r}, line {places[int(np.isnan(labels).argmax())]}: the label {label!r} is missing."
        )
    weights = values[:, kept.index(weight)] if weight else None
    if weights is not None and not (weights >= 0).all():
        line = places[int((~(weights >= 0)).argmax())]
        raise TightropeError(f"{path!r}, line {line}: the weight {weight!r} is no number from 0 on.")
    table = values[:, [kept.index(name) for name in features]].astype(np.float32)
    return ReadTable(features, table, labels, tuple(ids), weights)


def _csv_rows(path: str, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows, each with its line."""
    reader = csv.reader(lines)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise not_csv(f"{path!r}, line {reader.line_num}", error) from error


def _number(cell: str, path: str, line: int, name: str) -> float:
    text = cell.strip()
    if text.lower() in ("", "na", "nan"):
        return float("nan")
    try:
        value = float(text)
    except ValueError as error:
        raise TightropeError(
            f"{path!r}, line {line}, column {printable(name)!r}: {printable(cell[:40])!r} is no number."
        ) from error
    if not np.isfinite(value) or abs(value) > 3e38:
        raise TightropeError(
            f"{path!r}, line {line}, column {printable(name)!r}: {printable(cell[:40])!r} is not a "
            "finite float32."
        )
    return value


def _read_libsvm(path: str, lines: list[str], width: int) -> ReadTable:
    labels: list[float] = []
    rows: list[list[tuple[int, float]]] = []
    for line, text in enumerate(lines, 1):
        words = text.split()
        if not words:
            continue
        labels.append(_number(words[0], path, line, "label"))
        rows.append(list(_pairs(words[1:], path, line)))
    largest = max((index for row in rows for index, _ in row), default=-1) + 1
    if width and largest > width:
        raise TightropeError(f"{path!r}: names feature {largest - 1}, and {width} features were expected.")
    size = width or largest
    if not 0 < size <= _MAX_FEATURES:
        raise TightropeError(f"{path!r}: {size} features; 1 to {_MAX_FEATURES} are read.")
    table = np.zeros((len(rows), size), np.float32)
    for place, row in enumerate(rows):
        for index, value in row:
            table[place, index] = value
    given = np.array(labels)
    if set(given.tolist()) <= {-1.0, 1.0}:
        given = (given > 0).astype(np.float64)
    return ReadTable(tuple(f"x{f}" for f in range(size)), table, given)


def _pairs(words: Sequence[str], path: str, line: int) -> Iterator[tuple[int, float]]:
    for word in words:
        index, mark, value = word.partition(":")
        if not mark or not index.isascii() or not index.isdigit() or int(index) >= _MAX_FEATURES:
            raise TightropeError(
                f"{path!r}, line {line}: {printable(word[:40])!r}: give index:value, index below "
                f"{_MAX_FEATURES}."
            )
        yield int(index), _number(value, path, line, index)
