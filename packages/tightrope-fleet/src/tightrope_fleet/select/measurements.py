"""Read tables of noisy measurements: what is wrong is named by file and line, with what to give instead."""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from tightrope.core.errors import TightropeError
from tightrope.core.files import read_file
from tightrope.core.units import Bytes
from tightrope_fleet.csv_text import not_csv

MAX_TABLE_BYTES: Final[Bytes] = 64 * 2**20
_HEADER: Final = "candidate,value or candidate,value,predicted"


@dataclass(slots=True)
class SelectMeasurements:
    """What a file held.

    Attributes:
        names: of the candidates, as they came.
        looks: (number of the candidate, value) as they were measured.
        predicted: value of every candidate that a model predicts, by name; empty where none does.
        maximize: whether values were negated, as more is better.
        num_left_out: trials of a study that have no value.
    """

    names: list[str] = field(default_factory=list)
    looks: list[tuple[int, float]] = field(default_factory=list)
    predicted: dict[str, float] = field(default_factory=dict)
    maximize: bool = False
    num_left_out: int = 0

    def scale(self, *, logs: bool = False) -> float:
        """What a share of the data is a share of: 1 with logarithms, else the middle magnitude of all values.

        Raises:
            TightropeError: that is 0.

        >>> SelectMeasurements(["a"], [(0, 200.0), (0, -100.0), (0, 300.0)]).scale()
        200.0
        """
        if logs:
            return 1.0
        found = median(
            abs(value) for value in (*(value for _, value in self.looks), *self.predicted.values())
        )
        if not found:
            raise TightropeError(
                "most values are 0, so shares of them are none: give --noise-sd, --prior-sd and --tolerance."
            )
        return found

    @property
    def prior(self) -> list[float] | None:
        """Predictions in the order of the names."""
        return [self.predicted[name] for name in self.names] if self.predicted else None


def read_measurements(path: str | Path, *, logs: bool = False) -> SelectMeasurements:
    """Read a CSV file with a row per measurement; an empty value is a candidate that was not measured yet.

    Args:
        path: the file, with columns ``candidate`` and ``value``, and ``predicted`` where a model predicts.
        logs: values have to be above 0.

    Raises:
        TightropeError: a column is missing, a row has more or fewer values than the header, or a value
            cannot be; names file and line.
    """
    found, where = SelectMeasurements(), repr(str(path))
    numbers: dict[str, int] = {}
    last = ""
    for line, row in _rows(path):
        at, name = f"{where}, line {line}", row["candidate"].strip()
        if not name:
            raise TightropeError(
                f"{at}: the row has no candidate: give each row the name of what was measured."
            )
        if name not in numbers:
            numbers[name] = len(numbers)
            found.names.append(name)
        if row["value"].strip():
            found.looks.append((numbers[name], _number(row["value"], at, "value", logs)))
        if row.get("predicted", "").strip():
            predicted = _number(row["predicted"], at, "predicted", logs)
            if found.predicted.setdefault(name, predicted) != predicted:
                raise TightropeError(
                    f"{at}: {name!r:.60} is predicted as {predicted:g}, and as {found.predicted[name]:g} "
                    "above: give one prediction per candidate."
                )
        last = at
    if not found.names:
        raise TightropeError(f"{where}: no rows below the header: give a row per measurement, {_HEADER}.")
    if not found.looks and not found.predicted:
        raise TightropeError(f"{last}: no row has a value or a prediction: give at least one.")
    lacking = [name for name in found.names if name not in found.predicted]
    if found.predicted and lacking:
        raise TightropeError(
            f"{where}: {lacking[0]!r:.60} has no prediction, and others have one: predict all, or leave the "
            "column out."
        )
    return found


def _rows(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows by column, each with its line."""
    where, data = repr(str(path)), read_file(path, limit=MAX_TABLE_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TightropeError(
            f"{where}, line {line}: not UTF-8 text: save the table as CSV in UTF-8."
        ) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        for name in ("candidate", "value"):
            if header.count(name) != 1:
                raise TightropeError(
                    f"{where}, line 1: {'no' if name not in header else 'more than one'} column {name!r}; it "
                    f"has {','.join(header)[:200]!r}: begin the file with {_HEADER}."
                )
        if len(set(header)) != len(header):
            raise TightropeError(
                f"{where}, line 1: two columns of one name, {','.join(header)[:200]!r}: leave one out."
            )
        for row in reader:
            if row and len(row) != len(header):
                raise TightropeError(
                    f"{where}, line {reader.line_num}: {len(row)} values, and the header names "
                    f"{len(header)} columns, {','.join(header)[:200]}: give one each, empty for none."
                )
            if row:
                yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise not_csv(f"{where}, line {reader.line_num}", error) from error


def _number(text: str, at: str, column: str, logs: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (logs and value <= 0):
        what = "a number above 0, or leave out --logs" if logs else "a finite number"
        raise TightropeError(f"{at}: {column} is {text.strip()[:40]!r}: give {what}, or leave it empty.")
    return value
