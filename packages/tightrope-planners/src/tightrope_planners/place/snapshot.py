"""Read a CUDA memory snapshot that was saved as JSON.

``torch.cuda.memory._dump_snapshot`` writes a pickle, and opening a pickle can run code, so pickles
are refused here. Convert one where it was made: see `TO_JSON`.
"""

from collections.abc import Mapping
from typing import Any, Final

from tightrope.core import Bytes, TightropeError
from tightrope.place.placer import Interval
from tightrope_planners.place.instance import Instance

TO_JSON: Final = (
    "python -c \"import json, pickle; json.dump(pickle.load(open('snapshot.pickle', 'rb')), "
    "open('snapshot.json', 'w'))\""
)
"""The command that turns a snapshot of one's own into JSON."""

_ALIGNMENT: Final = 512
"""The CUDA caching allocator rounds sizes up to this."""


def parse_snapshot(tree: Mapping[str, Any], name: str, *, device: int | None = None) -> Instance:
    """Read the allocations of one device.

    A buffer lives from its ``alloc`` entry to its ``free_completed`` one (``free_requested`` where
    there is none); blocks that were there before live from the start, those never freed to the end.

    Args:
        tree: the snapshot as plain values.
        name: what it is, for messages.
        device: index of the device; None = the only one with allocations.

    Returns:
        Buffers in the order in which they begin; time counts trace entries.

    Raises:
        TightropeError: a field is missing or of the wrong kind, or the device must be chosen.

    Example:
        >>> entries = [{"action": name, "addr": 1, "size": 9} for name in ("alloc", "free_completed")]
        >>> parse_snapshot({"device_traces": [entries]}, "x").buffers
        ((9, 1, 2),)
    """
    traces = tree.get("device_traces")
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise TightropeError(f"{name}: $.device_traces must be a list of lists of entries.")
    used = [number for number, trace in enumerate(traces) if trace]
    if device is None and len(used) != 1:
        raise TightropeError(f"{name}: devices {used} have allocations: choose one, such as device=0.")
    chosen = used[0] if device is None else device
    if not 0 <= chosen < len(traces):
        raise TightropeError(f"{name}: there is no device {chosen}; it has {len(traces)}.")
    book = _Book(name)
    for number, entry in enumerate(traces[chosen], start=1):
        book.enter(number, entry)
    segments = [s for s in _list(tree, "segments") if isinstance(s, dict) and s.get("device", 0) == chosen]
    return book.close(len(traces[chosen]) + 1, segments)


class _Book:
    """Which blocks are alive, by address, while a trace is read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[tuple[Bytes, int, int]] = []
        self.alive: dict[int, int] = {}
        self.ending: dict[int, int] = {}

    def enter(self, now: int, entry: object) -> None:
        if not isinstance(entry, dict) or not isinstance(entry.get("action"), str):
            raise TightropeError(f"{self.name}: trace entry {now - 1} has no action.")
        action = entry["action"]
        if action not in ("alloc", "free_requested", "free_completed"):
            return
        address, size = self._number(entry, "addr", now), self._number(entry, "size", now)
        if action == "alloc":
            self._end(address, now)
            self.alive[address] = len(self.rows)
            self.rows.append((size, now, -1))
        elif action == "free_completed":
            if address not in self.alive:
                self._before(address, size)
            self._end(address, now)
        else:
            if address not in self.alive:
                self._before(address, size)
            self.ending[address] = now

    def close(self, now: int, segments: list[Any]) -> Instance:
        for segment in segments:
            for block in _list(segment, "blocks"):
                if isinstance(block, dict) and block.get("state") == "active_allocated":
                    address, size = self._number(block, "address", 0), self._number(block, "size", 0)
                    if address not in self.alive:
                        self._before(address, size)
        for address in list(self.alive):
            self._end(address, self.ending.get(address, now))
        rows = sorted(self.rows, key=lambda row: row[1])
        buffers: tuple[Interval, ...] = tuple(rows)
        return Instance(
            buffers=buffers,
            names=tuple(str(number) for number in range(len(rows))),
            alignments=(_ALIGNMENT,) * len(rows),
            offsets=(-1,) * len(rows),
        )

    def _before(self, address: int, size: Bytes) -> None:
        """Enter a block that was allocated before the trace began."""
        self.alive[address] = len(self.rows)
        self.rows.append((size, 0, -1))

    def _end(self, address: int, now: int) -> None:
        row = self.alive.pop(address, None)
        self.ending.pop(address, None)
        if row is not None:
            size, start, _ = self.rows[row]
            self.rows[row] = (size, start, max(now, start + 1))

    def _number(self, entry: Mapping[str, Any], key: str, now: int) -> int:
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise TightropeError(f"{self.name}: entry {now - 1}: {key} must be an integer of at least 0.")
        return value


def _list(tree: Mapping[str, Any], key: str) -> list[Any]:
    value = tree.get(key)
    return value if isinstance(value, list) else []
