"""Recordings with labels as one file, and cut into windows."""

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tightrope.core import TightropeError
from tightrope.core.writing import write_whole
from tightrope_micro.sensor.acquisition import Acquisition, AcquisitionError, Sensor, read_acquisition_file

Floats = npt.NDArray[np.float64]
_LAYOUT = 1


@dataclass(frozen=True)
class SensorRecording:
    """One recording.

    Attributes:
        name: of its file.
        label: the name up to the first dot.
        values: (rows, axes).
    """

    name: str
    label: str
    values: Floats


@dataclass(frozen=True)
class Dataset:
    """Recordings of the same sensors at the same interval.

    Attributes:
        sensors: the axes.
        interval_ms: milliseconds between two rows.
        recordings: in the order of their names.
        verified: whether every signature was checked.
    """

    sensors: tuple[Sensor, ...]
    interval_ms: float
    recordings: tuple[SensorRecording, ...]
    verified: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label once, sorted."""
        return tuple(sorted({one.label for one in self.recordings}))


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layout: int
    sensors: tuple[Sensor, ...]
    interval_ms: float
    verified: bool
    names: tuple[str, ...]
    labels: tuple[str, ...]
    rows: tuple[int, ...]


def ingest(paths: Iterable[str | os.PathLike[str]], *, key: str | None) -> Dataset:
    """Read recordings, all of them or none.

    Args:
        paths: files, and folders of files that end in .json or .cbor.
        key: that every one has to be signed with; None = signatures are not looked at.

    Raises:
        AcquisitionError: one is refused, or they are not of the same sensors and interval.
    """
    found: list[tuple[Path, Acquisition]] = []
    for path in _files(paths):
        found.append((path, read_acquisition_file(path, key=key)))
    first_path, first = found[0]
    for path, one in found:
        for what in ("sensors", "interval_ms"):
            if getattr(one.payload, what) != getattr(first.payload, what):
                raise AcquisitionError(
                    f"{str(path)!r} and {str(first_path)!r} differ in {what}: a net needs recordings that "
                    f"are "
                    "alike. Ingest them into two data sets."
                )
    recordings = [
        SensorRecording(path.name, path.name.split(".")[0], np.array(one.payload.values, dtype=np.float64))
        for path, one in found
    ]
    recordings.sort(key=lambda one: one.name)
    return Dataset(
        first.payload.sensors, float(first.payload.interval_ms), tuple(recordings), key is not None
    )


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(one for one in path.glob("*") if one.suffix in (".json", ".cbor"))
        if path.is_dir() and not inside:
            raise AcquisitionError(f"{str(path)!r} holds no file that ends in .json or .cbor: give another.")
        found += inside if path.is_dir() else [path]
    names = [path.name for path in found]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise AcquisitionError(f"two recordings are called {doubled[0]!r}: rename one.")
    if not found:
        raise AcquisitionError("no recording was given: give files, or a folder of them.")
    return found


def write_dataset(path: str | os.PathLike[str], dataset: Dataset) -> None:
    """Write a data set as one file, whole or not at all.

    Raises:
        TightropeError: it cannot be written.
    """
    head = _Head(
        _LAYOUT, dataset.sensors, dataset.interval_ms, dataset.verified,
        tuple(one.name for one in dataset.recordings), tuple(one.label for one in dataset.recordings),
        tuple(len(one.values) for one in dataset.recordings),
    )  # fmt: skip
    stream = io.BytesIO()
    np.savez(
        stream,
        head=np.frombuffer(msgspec.json.encode(head), dtype=np.uint8),
        values=np.concatenate([one.values for one in dataset.recordings]),
    )
    write_whole(path, stream.getvalue())


def read_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Read a data set that `write_dataset` wrote.

    Raises:
        TightropeError: the file is none.
    """
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            head = msgspec.json.decode(arrays["head"].tobytes(), type=_Head)
            values = np.asarray(arrays["values"], dtype=np.float64)
    except OSError as error:
        raise TightropeError(
            f"{str(path)!r} cannot be read: {error.strerror or error}: give what tightrope micro ingest "
            f"wrote."
        ) from error
    except Exception as error:  # what a damaged archive raises is numpy's and zipfile's affair
        raise TightropeError(
            f"{str(path)!r} is no data set that tightrope micro ingest wrote, or it is damaged. Ingest the "
            "recordings again."
        ) from error
    ends = np.cumsum(head.rows)
    whole = values.ndim == 2 and values.shape[1] == len(head.sensors) and np.isfinite(values).all()
    if head.layout != _LAYOUT or not whole or not len(ends) or ends[-1] != len(values):
        raise TightropeError(f"{str(path)!r} is no data set of this version. Ingest the recordings again.")
    parts = np.split(values, ends[:-1])
    recordings = tuple(map(SensorRecording, head.names, head.labels, parts))
    return Dataset(head.sensors, head.interval_ms, recordings, head.verified)


def windows(recordings: Sequence[SensorRecording], rows: int, stride: int) -> tuple[Floats, list[str]]:
    """Cut recordings into windows.

    Args:
        recordings: of the same axes.
        rows: of a window.
        stride: rows from the start of one window to the next.

    Returns:
        (windows, rows, axes), and the label of each.

    Raises:
        TightropeError: every recording is shorter than a window.
    """
    found, labels = [], []
    for one in recordings:
        for start in range(0, len(one.values) - rows + 1, stride):
            found.append(one.values[start : start + rows])
            labels.append(one.label)
    if not found:
        longest = max((len(one.values) for one in recordings), default=0)
        raise TightropeError(
            f"a window has {rows} rows and the longest recording {longest}: give a smaller window."
        )
    return np.stack(found), labels
