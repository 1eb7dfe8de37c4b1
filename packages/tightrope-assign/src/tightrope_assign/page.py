"""The page of every plan: devices over time, what each holds, and who talks to whom."""

from collections.abc import Sequence
from typing import Any

from tightrope.core import format_bytes
from tightrope.core.units import format_time
from tightrope_shared.draw import Lane, draw_lanes, work_page


def device_page(
    title: str,
    drawing: str,
    lanes: Sequence[Lane],
    what: str,
    rows: Sequence[dict[str, Any]],
    talks: list[list[str]],
) -> str:
    """Draw a page.

    Args:
        title: of the page.
        drawing: title of the drawing.
        lanes: one per device, in ms.
        what: the items are called; a key of ``rows``.
        rows: per device: ``device``, the items, ``bytes``, ``limit``, ``busy_ns``.
        talks: from, to, messages, bytes.
    """
    held = [
        [
            row["device"],
            str(len(row[what])),
            format_time(row["busy_ns"]),
            format_bytes(row["bytes"]),
            format_bytes(row["limit"]) if row["limit"] else "-",
        ]
        for row in rows
    ]
    return work_page(
        title,
        [("Devices over time", draw_lanes(lanes, unit="ms", title=drawing))],
        [
            ("Devices", ("device", what, "busy", "bytes", "limit"), held),
            ("Messages", ("from", "to", "messages", "bytes"), talks),
        ],
    )


def row_lines(rows: Sequence[dict[str, Any]], what: str) -> list[str]:
    """Write a line per device for a terminal."""
    found = []
    for row in rows:
        limit = f" of {format_bytes(row['limit'])}" if row["limit"] else ""
        busy = f"{len(row[what])} {what}, {format_time(row['busy_ns'])}"
        names = ", ".join(row[what])
        found.append(f"  {row['device']}: {busy}, {format_bytes(row['bytes'])}{limit}: {names[:200]}")
    return found
