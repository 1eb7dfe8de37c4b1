"""Check the log of federated rounds against the fleet: who trained when, and what adds up.

Guarantee   What is accepted began inside a window, ended no later than it, ran one task per device at a time,
            stepped on versions in order, and has counts and bytes that follow from its events.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class JudgedLog(Protocol):
    """What a log claims."""

    events: list[tuple[int, str, int, int]]
    started: int
    succeeded: int
    interrupted: int
    stale: int
    running: int
    down: int
    up: int


def log_problems(log: JudgedLog, windows: Sequence[NDArray[np.int64]], size: int) -> list[str]:
    """List what is wrong with a log; empty where it holds.

    Args:
        log: events (ms, kind, device, version) and counts.
        windows: begin and end of every window of every device, ms.
        size: bytes of the model, each way.
    """
    wrong: list[str] = []
    busy: dict[int, tuple[int, int]] = {}
    version = done = left = 0
    for place, (at, kind, device, of) in enumerate(sorted(log.events, key=lambda event: event[0])):
        where = f"event {place} ({kind} of device {device} at {at} ms)"
        if kind == "step":
            version += 1
            if of != version:
                wrong.append(f"{where}: makes version {of} after {version - 1}")
        elif kind == "start":
            edges = windows[device]
            inside = np.searchsorted(edges, at, side="right") % 2 == 1
            if device in busy or not inside or of != version:
                wrong.append(f"{where}: the device is busy or away, or the version is not {version}")
            end = int(edges[np.searchsorted(edges, at, side="right")]) if inside else at
            busy[device] = (of, end)
        else:
            began, end = busy.pop(device, (-1, -1))
            if began != of or at > end or (kind == "left" and at != end):
                wrong.append(f"{where}: no such task, or not within its window")
            done, left = done + (kind == "done"), left + (kind == "left")
    counts = (log.started, log.succeeded + log.stale, log.interrupted, log.running)
    due = (done + left + len(busy), done, left, len(busy))
    if counts != due:
        wrong.append(f"started, ended, interrupted and running are {counts}; the events give {due}")
    if (log.down, log.up) != (size * log.started, size * done):
        wrong.append(
            f"bytes down and up are {log.down} and {log.up}; the events give {size * log.started} and "
            f"{size * done}"
        )
    return wrong
