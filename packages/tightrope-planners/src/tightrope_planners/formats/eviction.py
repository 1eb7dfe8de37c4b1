"""Files of eviction logs, which `tightrope_planners.evict.log` describes; and logs of graphs.

    {"format": "tightrope eviction log", "version": 1, "name": "two ops",
     "storages": [[4096, true], [4096, false], [4096, false]],      bytes; whether outside the arena
     "events": [["op", "aten.relu", 12000, [0], [1], [], 0, true],  target, ns, reads, creates, mutates,
                ["op", "aten.add_", 900, [1, 0], [], [1], 0, true], temporary bytes, recomputable
                ["release", 1],                                     nobody holds it any more
                ["step"]]}                                          a training step ends

What is read is checked: every storage is made before it is used, and let go once.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NoReturn, TypeGuard

from tightrope.core import Flag, Graph, PlanFileError
from tightrope.core.json_text import MAX_INT, parse_json, quote
from tightrope.core.units import Bytes, StorageId
from tightrope_planners.evict.log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd

FORMAT: Final = "tightrope eviction log"
VERSION: Final = 1
MAX_EVENTS: Final = 2_000_000
_FIELDS: Final = {"format", "version", "name", "storages", "events"}
_MAX_TEXT: Final = 1_000


def write_eviction_log(log: EvictionLog) -> bytes:
    """Write a log; `read_eviction_log` gives the same one back.

    Example:
        >>> log = EvictionLog("x", (64,), (False,), (LoggedOp("aten.zeros", 5, (), (0,)), Released(0)))
        >>> read_eviction_log(write_eviction_log(log)) == log
        True
    """
    storages = [[size, outside] for size, outside in zip(log.sizes, log.outside, strict=True)]
    tree = {"format": FORMAT, "version": VERSION, "name": log.name, "storages": storages}
    return json.dumps({**tree, "events": [_row(event) for event in log.events]}).encode()


def _row(event: LogEvent) -> list[Any]:
    match event:
        case LoggedOp():
            lists = (list(event.reads), list(event.creates), list(event.mutates))
            return ["op", event.target, event.ns, *lists, event.temporary, event.recomputable]
        case Released():
            return ["release", event.storage]
        case StepEnd():
            return ["step"]


def read_eviction_log(data: bytes) -> EvictionLog:
    """Read a log of at most 256 MiB and check it: every storage is made before it is used, and let go once.

    Raises:
        PlanFileError: says which event is wrong, and why.
    """
    tree = parse_json(data, "eviction log")
    if not isinstance(tree, dict) or set(tree) != _FIELDS or tree["format"] != FORMAT:
        _refuse("$", sorted(tree) if isinstance(tree, dict) else tree, f"fields {sorted(_FIELDS)}")
    if tree["version"] != VERSION or isinstance(tree["version"], bool):
        _refuse("$.version", tree["version"], f"{VERSION}; write the log again with this version")
    name, rows, events = tree["name"], tree["storages"], tree["events"]
    if not isinstance(name, str) or len(name) > _MAX_TEXT:
        _refuse("$.name", name, f"a text of at most {_MAX_TEXT} characters")
    for field, value in (("storages", rows), ("events", events)):
        if not isinstance(value, list) or len(value) > MAX_EVENTS:
            _refuse(f"$.{field}", type(value).__name__, f"an array of at most {MAX_EVENTS} rows")
    for at, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[1], bool) and _is_amount(row[0])):
            _refuse(f"$.storages[{at}]", row, "[bytes, whether outside the arena]")
    reader = _Checked(tuple(size for size, _ in rows), tuple(outside for _, outside in rows))
    checked = tuple(reader.event(at, row) for at, row in enumerate(events))
    ns = sum(event.ns for event in checked if isinstance(event, LoggedOp))
    if max(ns, sum(reader.sizes)) > MAX_INT:
        _refuse("$.events", f"{ns} ns, {sum(reader.sizes)} bytes", "at most 2^62 ns and bytes in all")
    return EvictionLog(name, reader.sizes, reader.outside, checked)


class _Checked:
    """What the events so far have made and let go."""

    def __init__(self, sizes: tuple[Bytes, ...], outside: tuple[bool, ...]) -> None:
        self.sizes, self.outside = sizes, outside
        self.made = list(outside)
        self.gone = [False] * len(sizes)
        self.at = ""

    def event(self, at: int, row: object) -> LogEvent:
        self.at = f"$.events[{at}]"
        match row:
            case ["step"]:
                return StepEnd()
            case ["release", storage]:
                (released,) = self._live([storage])
                self.gone[released] = True
                return Released(released)
            case ["op", str(target), ns, list(reads), list(creates), list(mutates), temporary, bool(again)]:
                if len(target) > _MAX_TEXT or not _is_amount(ns) or not _is_amount(temporary):
                    _refuse(self.at, row, "an op with a name, and ns and temporary bytes of 0 to 2^62")
                read = self._live(reads)
                if not set(changed := self._live(mutates)) <= set(read):
                    _refuse(self.at, mutates, "storages that the op reads")
                return LoggedOp(target, ns, read, self._new(creates), changed, temporary, again)
        _refuse(self.at, row, '["op", ...] of 8 values, ["release", storage] or ["step"]')

    def _live(self, ids: list[Any]) -> tuple[StorageId, ...]:
        found = self._storages(ids)
        for storage in found:
            if not self.made[storage] or self.gone[storage]:
                _refuse(self.at, storage, "a storage that is made before and not yet released")
        return found

    def _new(self, ids: list[Any]) -> tuple[StorageId, ...]:
        found = self._storages(ids)
        for storage in found:
            if self.made[storage]:
                _refuse(self.at, storage, "a storage that nothing made before")
            self.made[storage] = True
        return found

    def _storages(self, ids: list[Any]) -> tuple[StorageId, ...]:
        if not all(_is_amount(one) and one < len(self.sizes) for one in ids) or len(set(ids)) != len(ids):
            _refuse(self.at, ids, f"different numbers below {len(self.sizes)}")
        return tuple(ids)


def _is_amount(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT


def _refuse(where: str, value: object, must: str) -> NoReturn:
    raise PlanFileError(f"eviction log: {where} = {quote(value)}: must be {must}.")


def log_of_graph(graph: Graph, *, num_steps: int = 1) -> EvictionLog:
    """Turn a graph, such as a DTR log as it was read, into a log that runs it in its base order.

    A storage is let go after the last op that reads it, unless it stays to the end; then it is let go
    when the step ends, so that several steps may follow one another.

    Args:
        graph: what it can run again, by a variant or by the op itself, is recomputable.
        num_steps: how often the ops run, on the same external storages.
    """
    sizes = [storage.bytes for storage in graph.storages]
    outside = [storage.external for storage in graph.storages]
    last: dict[StorageId, int] = {}
    for at, op in enumerate(graph.ops):
        last.update(dict.fromkeys((*op.creates, *op.reads, *op.mutates), at))
    made: list[LogEvent] = []
    internal = [storage.id for storage in graph.storages if not storage.external]
    for step in range(num_steps):
        ids = {one: one for one in range(len(graph.storages))}
        if step:
            ids.update((one, len(sizes) + at) for at, one in enumerate(internal))
            sizes += [graph.storages[one].bytes for one in internal]
            outside += [False] * len(internal)
        made += _step(graph, last, ids)
    return EvictionLog(graph.name, tuple(sizes), tuple(outside), tuple(made))


def _step(graph: Graph, last: dict[StorageId, int], ids: dict[StorageId, StorageId]) -> Iterator[LogEvent]:
    stay: list[StorageId] = []
    for at, op in enumerate(graph.ops):
        reads = tuple(dict.fromkeys((*op.reads, *op.mutates)))
        yield LoggedOp(
            op.target,
            op.ns,
            tuple(ids[one] for one in reads),
            tuple(ids[one] for one in op.creates),
            tuple(ids[one] for one in op.mutates),
            recomputable=op.recomputable or not op.flags & ~Flag.IN_PLACE,
        )
        for one in dict.fromkeys((*reads, *op.creates)):
            if last[one] == at and not graph.storages[one].external:
                if graph.storages[one].resident_at_end:
                    stay.append(one)
                else:
                    yield Released(ids[one])
    for one in stay:
        yield Released(ids[one])
    yield StepEnd()
