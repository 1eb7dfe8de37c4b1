"""Logs of the DTR simulator: one JSON object per line.

    {"INSTRUCTION": "CONSTANT", "NAME": "x1"}, then its MEMORY     a tensor of the caller
    {"INSTRUCTION": "CALL", "NAME": "add", "ARGS": ["x1"], "RESULT": ["x2"], "TIME": "12000"}
    {"INSTRUCTION": "MEMORY", "NAME": "x2", "MEMORY": "4096"}      one per result ...
    {"INSTRUCTION": "ALIAS", "NAME": "x2", "ALIAS": "-1"}          ... and the argument that it views, or -1
    {"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": [...], "MUTATE": [0], "TIME": "900"}
    COPY and COPY_FROM give a tensor another name; RELEASE drops a name; ANNOTATE START and BACKWARD

Views collapse onto the storage that they look into; a call of which every result is a view stays, for
its time, as an op that makes nothing. A mutation is an in-place op, where the simulator copies. Whether
a storage is resident at the end follows from the names that are never released. Constants are external.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tightrope.core import Flag, Graph, Kind, Op, Phase, PlanFileError, Storage, StorageId
from tightrope.core.json_text import MAX_INT, parse_json, quote
from tightrope.formats.read import Source

MAX_LINES: Final = 2_000_000
_MAX_LINE: Final = 100_000
_MAX_TEXT: Final = 1_000
_DIGITS: Final = re.compile(r"-?\d{1,19}", re.ASCII)


def read_dtr_log(data: bytes, *, name: str = "") -> Source:
    """Turn a log into a graph; lines before ``ANNOTATE START``, where there is one, are warm-up.

    Args:
        data: the log, UTF-8 text.
        name: of the graph.

    Returns:
        One op per call, in the order of the log; bytes are charged as logged.

    Raises:
        PlanFileError: names the line, and quotes what is wrong in it.

    Example:
        >>> log = b'''{"INSTRUCTION": "CONSTANT", "NAME": "x"}
        ... {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"}
        ... {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["x"], "RESULT": ["y"], "TIME": "5"}
        ... {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "64"}
        ... {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"}
        ... '''
        >>> graph = read_dtr_log(log).graph
        >>> graph.ops[0].target, graph.storages[1].resident_at_end
        ('relu', True)
    """
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if len(lines) > MAX_LINES:
        raise PlanFileError(f"log: {len(lines)} lines; the most that is read is {MAX_LINES}.")
    starts = [i for i, (_, line) in enumerate(lines) if b"ANNOTATE" in line and b'"START"' in line]
    reader = _Reader(lines[starts[-1] + 1 if starts else 0 :])
    while reader.next():
        reader.verbs.get(reader.text("INSTRUCTION"), reader.unknown)()
    return reader.source(name)


class _Reader:
    """The lines to come, the line at hand, and what the log has said so far.

    Attributes:
        tensors: storage of every name.
        names: how many names each storage has that were not released.
    """

    def __init__(self, lines: list[tuple[int, bytes]]) -> None:
        self.lines, self.position, self.at = lines, 0, 0
        self.entry: dict[str, Any] = {}
        self.tensors: dict[str, StorageId] = {}
        self.names: list[int] = []
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.phase = Phase.FORWARD
        self.verbs: dict[str, Callable[[], None]] = {
            "CONSTANT": self._constant,
            "CALL": self._call,
            "MUTATE": self._mutate,
            "COPY": self._copy,
            "COPY_FROM": self._copy_from,
            "RELEASE": self._release,
            "ANNOTATE": self._annotate,
        }

    def next(self) -> bool:
        """Parse the next line, if there is one."""
        if self.position == len(self.lines):
            return False
        self.at, line = self.lines[self.position]
        self.position += 1
        entry = parse_json(line, f"log: line {self.at}") if len(line) <= _MAX_LINE else None
        if not isinstance(entry, dict):
            self._refuse("line", f"{len(line)} bytes", f"a JSON object of at most {_MAX_LINE} bytes")
        self.entry = entry
        return True

    def text(self, field: str) -> str:
        """Read a text field of the line at hand."""
        value = self.entry.get(field)
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            self._refuse(field, value, "a text")
        return value

    def unknown(self) -> None:
        """Refuse an instruction that stands where it must not, or is not known."""
        self._refuse("INSTRUCTION", self.entry["INSTRUCTION"], f"one of {', '.join(self.verbs)} here")

    def source(self, name: str) -> Source:
        """Finish: storages that still have a name stay to the end."""
        storages = tuple(
            Storage(
                s.id, s.bytes, s.kind, 1, not s.external and self.names[s.id] > 0, s.external, label=s.label
            )
            for s in self.storages
        )
        if not self.ops or max(sum(s.bytes for s in storages), sum(op.ns for op in self.ops)) > MAX_INT:
            raise PlanFileError("log: it must hold a CALL, and at most 2^62 bytes and ns in all.")
        graph = Graph(tuple(self.ops), storages, name=name, alignment=1)
        return Source(graph, tuple(range(len(self.ops))), "dtr-log")

    def _constant(self) -> None:
        name = self.text("NAME")
        self._define(name, self._storage(self._attribute("MEMORY", name), label=name, external=True))

    def _call(self) -> None:
        target, arguments, ns = self.text("NAME"), self._tensors("ARGS"), self._number("TIME")
        results = self._texts("RESULT")
        creates: list[StorageId] = []
        for name in results:
            size, viewed = self._attribute("MEMORY", name), self._attribute("ALIAS", name)
            if viewed >= len(arguments):
                self._refuse("ALIAS", viewed, f"-1 or one of the {len(arguments)} arguments")
            if viewed < 0:
                creates.append(self._storage(size, label=name))
            self._define(name, arguments[viewed] if viewed >= 0 else creates[-1])
        self._op(target, arguments, tuple(creates), (), ns)

    def _mutate(self) -> None:
        arguments, places = self._tensors("ARGS"), self.entry.get("MUTATE")
        if not isinstance(places, list) or not all(p in range(len(arguments)) for p in places):
            self._refuse("MUTATE", places, f"positions among the {len(arguments)} arguments")
        changed = tuple(sorted({arguments[place] for place in places}))
        self._op(self.text("NAME"), arguments, (), changed, self._number("TIME"))

    def _copy(self) -> None:
        self._define(self.text("DST"), self._tensor("SRC", self.text("SRC")))

    def _copy_from(self) -> None:
        storage = self._tensor("SRC", self.text("SRC"))
        self.names[self._tensor("DST", self.text("DST"))] -= 1
        self.tensors[self.text("DST")] = storage
        self.names[storage] += 1

    def _release(self) -> None:
        storage = self.tensors.pop(self.text("NAME"), None)  # names of the warm-up are released too
        if storage is not None:
            self.names[storage] -= 1

    def _annotate(self) -> None:
        if self.text("ANNOTATION") == "BACKWARD":
            self.phase = Phase.BACKWARD

    def _op(
        self,
        target: str,
        arguments: list[StorageId],
        creates: tuple[StorageId, ...],
        mutates: tuple[StorageId, ...],
        ns: int,
    ) -> None:
        if "backward" in target:
            self.phase = Phase.BACKWARD
        flags = Flag.IN_PLACE if mutates else Flag.NONE
        reads = tuple(sorted(set(arguments)))
        op = len(self.ops)
        name = f"{target}_{op}"
        self.ops.append(Op(op, name, target, reads, creates, mutates, ns, flags=flags, phase=self.phase))

    def _storage(self, size: int, *, label: str, external: bool = False) -> StorageId:
        kind = Kind.CONSTANT if external else Kind.ACTIVATION
        self.storages.append(Storage(len(self.storages), size, kind, 1, external=external, label=label))
        self.names.append(0)
        return len(self.storages) - 1

    def _define(self, name: str, storage: StorageId) -> None:
        if name in self.tensors:
            self._refuse("NAME", name, "a name that is not taken")
        self.tensors[name] = storage
        self.names[storage] += 1

    def _attribute(self, field: str, name: str) -> int:
        """Read the next line, which gives the MEMORY or the ALIAS of a tensor."""
        if not self.next() or self.entry.get("INSTRUCTION") != field or self.entry.get("NAME") != name:
            self._refuse("INSTRUCTION", self.entry.get("INSTRUCTION"), f"{field} of {name[:80]!r} here")
        return self._number(field, low=-1 if field == "ALIAS" else 0)

    def _number(self, field: str, *, low: int = 0) -> int:
        value = self.entry.get(field)
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_INT:
            self._refuse(field, value, f"a whole number from {low} to 2^62")
        return value

    def _texts(self, field: str) -> list[str]:
        value = self.entry.get(field)
        if not isinstance(value, list) or not all(isinstance(v, str) and len(v) <= _MAX_TEXT for v in value):
            self._refuse(field, value, "an array of texts")
        return value

    def _tensors(self, field: str) -> list[StorageId]:
        return [self._tensor(field, name) for name in self._texts(field)]

    def _tensor(self, field: str, name: str) -> StorageId:
        if name not in self.tensors:
            self._refuse(field, name, "a tensor that the log has made")
        return self.tensors[name]

    def _refuse(self, field: str, value: object, must: str) -> NoReturn:
        raise PlanFileError(f"log: line {self.at}: {field} = {quote(value)}: must be {must}.")
