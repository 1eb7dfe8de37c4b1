"""Azure's packing trace of 2020 as it is published: an SQLite file with the tables ``vm`` and ``vmType``.

``vmType`` has one row per type and per machine that the type fits, with shares of that machine. Jobs go to
one kind of machine here: the one that most VMs fit.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from tightrope.core.errors import TightropeError
from tightrope.core.units import printable

MAGIC: Final = b"SQLite format 3\0"
HEADER: Final = ("vmId", "vmTypeId", "starttime", "endtime", "core", "memory")
_MACHINE: Final = (
    "SELECT machineId FROM vmType JOIN vm USING (vmTypeId) GROUP BY machineId "
    "ORDER BY COUNT(*) DESC, machineId"
)
_VMS: Final = (
    "SELECT vm.rowid, vmId, vmTypeId, starttime, endtime, core, memory FROM vm "
    "JOIN vmType USING (vmTypeId) WHERE machineId = ? ORDER BY vm.rowid"
)


def read_packing_trace(path: Path) -> tuple[list[tuple[int, list[str]]], int]:
    """Read VMs, each with its shares of the machine that most VMs fit.

    Returns:
        Rows of `HEADER` with their number in ``vm``, and the number of VMs that do not fit that machine.

    Raises:
        TightropeError: it is no such database.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            machine = base.execute(_MACHINE).fetchone()
            found = [] if machine is None else base.execute(_VMS, machine).fetchall()
            (total,) = base.execute("SELECT COUNT(*) FROM vm").fetchone()
    except sqlite3.Error as error:
        raise TightropeError(
            f"{str(path)!r}: no packing trace: {printable(str(error))}. Give Azure's file with the tables "
            "vm and vmType."
        ) from error
    rows = [
        (int(number), ["" if value is None else str(value) for value in values]) for number, *values in found
    ]
    return rows, max(0, int(total) - len(rows))
