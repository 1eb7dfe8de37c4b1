"""Jobs from CSV files, and from Azure's packing trace.

Formats, told apart by their columns:

plain     ``name,start,end,size...``: whole numbers; every further column is a resource
pods      Alibaba's cluster-trace-gpu-v2023: ``name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,
          creation_time,deletion_time``, and ``pod_phase,scheduled_time`` where they are there; seconds.
          A pod begins when it was scheduled; one that never was is left out
rows      Azure packing rows: ``vmId,vmTypeId,starttime,endtime,core,memory``: days, shares of a machine;
          the SQLite file of that trace too

A job without an end, or a pod that was running when the trace was taken, is open: its end is not known, and
it goes on until the trace ends.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tightrope.core import Bytes, TightropeError
from tightrope.core.arguments import check_path
from tightrope_fleet.csv_text import not_csv
from tightrope_fleet.jobs.packing_trace import HEADER, MAGIC, read_packing_trace
from tightrope_fleet.values.work import WorkItem

_MOST_BYTES: Bytes = 256 * 2**20
_MILLION = 1_000_000
POD_MACHINE = (96_000, 393_216, 8_000)
"""CPU in thousandths, MiB, GPUs in thousandths: the machine that is there most often in that trace."""
_PODS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time")
_FIRST = ("name", "start", "end")
_Read: TypeAlias = Iterator[tuple[int, WorkItem, tuple[str, ...], bool]]
"""Line, job, features, whether its end is open: it is then the last instant at which it was seen."""


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Jobs by start, with what is known of each when it comes.

    Attributes:
        items: the jobs.
        features: per job, the most specific last; what a `LifetimeTable` groups by.
        capacity: of a machine that they are meant for; empty where the file does not say.
        num_left_out: rows of jobs that never ran, came before ``since``, took no time, or are larger than
            the machine.
        num_never_ran: of those, jobs that were never scheduled.
        open: per job, whether its end is not known: it lasts at least so long.
        source: of the jobs: a file's name; empty where they were made up.
        lines: per job, its line in the file.
        resources: columns of sizes; empty where the format says which.
    """

    items: tuple[WorkItem, ...]
    features: tuple[tuple[str, ...], ...]
    capacity: tuple[int, ...] = ()
    num_left_out: int = 0
    num_never_ran: int = 0
    open: tuple[bool, ...] = ()
    source: str = ""
    lines: tuple[int, ...] = ()
    resources: tuple[str, ...] = ()

    def check_capacity(self, capacity: Sequence[int]) -> None:
        r"""Refuse machines of other resources than the jobs, or smaller than one of them.

        Raises:
            TightropeError: names the file and the line.

        Example:
            >>> parse_jobs("name,start,end,gb\na,0,10,3", "jobs.csv").check_capacity((4,))
        """
        for item, line in zip(self.items, self.lines, strict=False):
            names = self.resources or tuple(f"resource {number}" for number in range(1, len(item.size) + 1))
            if len(item.size) != len(capacity):
                raise TightropeError(
                    f"{self.source}, line 1: jobs have {len(item.size)} sizes, {', '.join(names)[:200]}; the "
                    f"capacity {','.join(map(str, capacity))[:60]} has {len(capacity)}: give one per column."
                )
            for name, size, most in zip(names, item.size, capacity, strict=True):
                if size > most > 0:
                    raise TightropeError(
                        f"{self.source}, line {line}: job {item.name!r:.60} takes {size} of {name:.60}; a "
                        f"machine has {most}. Leave the job out, or take larger machines."
                    )


def read_jobs(path: str | Path, *, compress: float = 1.0, since: int = 0) -> JobTrace:
    """Read jobs from a CSV file of at most 256 MiB, or from Azure's packing trace.

    Args:
        path: the file.
        compress: divide arrival times by this, and leave lifetimes as they are: more jobs at once.
        since: leave out jobs that arrive before, in the file's own seconds.

    Raises:
        TightropeError: no such file, a missing column, or a value that cannot be; names the line.
    """
    check_path(path, "the path of a CSV file of jobs")
    file = Path(path)
    if _is_database(file):
        rows, misfits = read_packing_trace(file)
        return _trace(_Table(str(path), HEADER, rows), compress, since, misfits)
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        raise TightropeError(f"no jobs at {str(path)!r}: give a CSV file of at most 256 MiB.")
    try:
        data = file.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TightropeError(
            f"{path}, line {line}: not UTF-8 text: save the jobs as CSV in UTF-8."
        ) from error
    except OSError as error:
        raise TightropeError(f"{str(path)!r} cannot be read: {error}. Give a CSV file in UTF-8.") from error
    return parse_jobs(text, str(path), compress=compress, since=since)


def _is_database(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise TightropeError(f"{str(file)!r} cannot be read: {error}. Give a CSV file in UTF-8.") from error


def parse_jobs(text: str, name: str, *, compress: float = 1.0, since: int = 0) -> JobTrace:
    r"""Read jobs from text; see `read_jobs`.

    Example:
        >>> parse_jobs("name,start,end,gb\na,0,10,3\nb,2,4,1", "jobs.csv").items[1]
        WorkItem(name='b', size=(1,), start=2, end=4)
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise not_csv(f"{name}, line {reader.line_num}", error) from error
    for line, row in rows:
        if len(row) != len(header):
            raise TightropeError(
                f"{name}, line {line}: {len(row)} values; the header names {len(header)} columns, "
                f"{','.join(header)[:120]}. Give one value per column, or name a column for each."
            )
    return _trace(_Table(name, header, rows), compress, since)


def _trace(table: "_Table", compress: float, since: int, misfits: int = 0) -> JobTrace:
    if not 0 < compress < math.inf:
        raise TightropeError(f"compress={compress}: give a number above 0.")
    header, capacity = table.header, tuple[int, ...]()
    if "creation_time" in header or "gpu_milli" in header:
        read, capacity = _pods(table, since), POD_MACHINE
    elif "vmId" in header or "starttime" in header:
        read, capacity = _rows(table, since), (_MILLION, _MILLION)
    else:
        read = _plain(table, since)
    found = list(read)
    finish = max((item.end for _, item, _, _ in found), default=0)
    kept = [
        (item, feature, line, is_open)
        for line, item, feature, is_open in found
        if not capacity or all(size <= most for size, most in zip(item.size, capacity, strict=True))
    ]
    kept.sort(key=lambda one: one[0].start)
    first = kept[0][0].start if kept else 0
    starts = [
        int((item.start - first) / compress) if compress != 1 or since else item.start for item, *_ in kept
    ]
    items = []
    for (item, _, _, is_open), start in zip(kept, starts, strict=True):
        end = start + item.end - item.start
        if is_open:  # still there when the last job comes
            end = max(start + finish - item.start, starts[-1] + 1)
        items.append(WorkItem(item.name, item.size, start, end))
    return JobTrace(
        tuple(items),
        tuple(feature for _, feature, _, _ in kept),
        capacity,
        len(table.rows) - len(kept) + misfits,
        len(table.never_ran),
        tuple(is_open for *_, is_open in kept),
        table.name,
        tuple(line for _, _, line, _ in kept),
        () if capacity else tuple(column for column in header if column not in _FIRST),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    never_ran: list[int] = field(default_factory=list)

    def check_names(self, column: str) -> None:
        """Refuse a job that is there twice."""
        place, lines = self.header.index(column), dict[str, int]()
        for line, row in self.rows:
            if (before := lines.setdefault(row[place], line)) != line:
                raise TightropeError(
                    f"{self.name}, line {line}: {column} {row[place]!r:.60} is in line {before} too: give "
                    "one row per job"
                    + (
                        ". Azure's vmType has one row per machineId: join those of one machineId, or give "
                        "the SQLite file."
                    )
                    * (column == "vmId")
                    + "." * (column != "vmId")
                )

    def need(self, columns: Sequence[str]) -> list[int]:
        """Find columns."""
        missing = [column for column in columns if column not in self.header]
        if missing or len(set(self.header)) != len(self.header):
            raise TightropeError(
                f"{self.name}, line 1: missing or repeated columns: "
                f"{', '.join(missing) or 'a name is there twice'}; "
                f"it has {','.join(self.header)[:120]!r}. Formats: name,start,end,sizes; Alibaba's pods; "
                "Azure's rows."
            )
        self.check_names(columns[0])
        return [self.header.index(column) for column in columns]

    def number(self, line: int, column: str, text: str) -> float:
        """Read a number that is finite and not negative."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < 2**53:
            raise TightropeError(
                f"{self.name}, line {line}: {column} is {text[:40]!r}: give a number from 0 to below 2^53."
            )
        return value

    def whole(self, line: int, column: str, text: str) -> int:
        """Read a whole number that is not negative: a part of one would be lost."""
        value = self.number(line, column, text)
        if value != int(value):
            raise TightropeError(
                f"{self.name}, line {line}: {column} is {text[:40]!r}: give a whole number, of smaller units."
            )
        return int(value)


def _plain(table: _Table, since: int) -> _Read:
    places = table.need(_FIRST)
    sizes = [at for at in range(len(table.header)) if at not in places]
    if not sizes:
        raise TightropeError(
            f"{table.name}, line 1: no column says how large jobs are; add one per resource."
        )
    for line, row in table.rows:
        start = table.whole(line, "start", row[places[1]])
        is_open = not row[places[2]].strip()
        end = start + 1 if is_open else table.whole(line, "end", row[places[2]])
        size = tuple(table.whole(line, table.header[at], row[at]) for at in sizes)
        if end <= start:
            raise TightropeError(
                f"{table.name}, line {line}: ends at {end} and starts at {start}: give an end after the "
                "start."
            )
        if start >= since:
            yield line, WorkItem(row[places[0]], size, start, end), (), is_open


def _pods(table: _Table, since: int) -> _Read:
    places = table.need(_PODS)
    phase, scheduled = (
        table.header.index(column) if column in table.header else None
        for column in ("pod_phase", "scheduled_time")
    )
    for line, row in table.rows:
        name, cpu, memory, count, share, qos, born, died = (row[at] for at in places)
        sizes = [
            table.number(line, c, t) for c, t in zip(_PODS[1:5], (cpu, memory, count, share), strict=True)
        ]
        state = "" if phase is None else row[phase].strip()
        if scheduled is not None and row[scheduled].strip():
            born = row[scheduled]
        elif state == "Pending" or (scheduled is not None and state != "Running"):
            table.never_ran.append(line)
            continue
        start = table.number(line, "scheduled_time or creation_time", born)
        is_open = state == "Running" or not died.strip()
        end = table.number(line, "deletion_time", died) if died.strip() else start + 1
        if end <= start or start < since:
            continue
        gpu = sizes[2] * 1000 if sizes[2] > 1 else sizes[2] * sizes[3]
        item = WorkItem(
            name, (int(sizes[0]), int(sizes[1]), int(gpu)), int(start), int(start) + int(end - start)
        )
        if item.end > item.start:
            yield line, item, (qos, count, f"{cpu} {memory} {share}"), is_open


def _rows(table: _Table, since: int) -> _Read:
    places = table.need(HEADER)
    for line, row in table.rows:
        name, kind, born, died, core, memory = (row[at] for at in places)
        start = table.number(line, "starttime", born) * 86400 if not born.startswith("-") else 0.0
        if start < since:
            continue
        is_open = not died.strip()
        end = start + 1 if is_open else table.number(line, "endtime", died) * 86400
        sizes = tuple(
            math.ceil(table.number(line, c, t) * _MILLION) for c, t in (("core", core), ("memory", memory))
        )
        if int(end) > int(start):
            yield line, WorkItem(name, sizes, int(start), int(end)), (kind,), is_open
