"""A training step as one file: its graph, the executable, and the bytes that it begins from.

    +-------+---------+--------+------------------+---------+---------------------------------+
    | magic | header  | data   | header           | padding | data                            |
    | 16 B  | bytes 8 | bytes 8| JSON, a `Bundle` | to 64   | storages, each at a multiple of 64 |
    +-------+---------+--------+------------------+---------+---------------------------------+

Numbers are little-endian. The header says where every storage of the caller lies in the data, and the
data holds nothing else but padding. Reading executes nothing: the header is parsed as any file here,
the length of the file is compared with what it says, and only then is memory taken for the data.
"""

import io
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import msgspec

from tightrope.core.checking import few, refuse, within
from tightrope.core.errors import PlanFileError
from tightrope.core.executable import Executable
from tightrope.core.executable_check import check_executable
from tightrope.core.files import dump, load
from tightrope.core.graph import SCHEMA_VERSION, Graph
from tightrope.core.graph_check import check_graph
from tightrope.core.json_text import MAX_FILE_BYTES
from tightrope.core.recognize import recognized
from tightrope.core.units import Bytes, Offset, StorageId, round_up
from tightrope.core.values import EMPTY
from tightrope.core.writing import replacing

MAGIC: Final = b"tightrope step 1"
_FRAME: Final = struct.Struct("<16sQQ")
_ALIGNMENT: Final[Bytes] = 64
_MAX_DATA: Final[Bytes] = 2**46
_MAX_RANDOM: Final[Bytes] = 2**20
_MAX_NUMBERS: Final = 16

Role = Literal["parameter", "buffer", "input", "state", "settings", "constant", "unread"]


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of one storage lie in the data; storage -1 is the random state."""

    storage: StorageId
    offset: Offset
    bytes: Bytes


class Named(msgspec.Struct, frozen=True, array_like=True):
    """What one input of the first part is: its name for people, and its role."""

    name: str
    role: Role


class UpdateRow(msgspec.Struct, frozen=True):
    """How one parameter is updated.

    Attributes:
        parameter: position among the inputs.
        settings: position of the numbers of its next update, which are made anew for every step.
        options: hyperparameters by name, as numbers.
        count: updates that were made so far.
    """

    parameter: int
    settings: int
    options: tuple[tuple[str, tuple[float, ...]], ...]
    count: float = 0.0


class Bundle(msgspec.Struct, frozen=True):
    """The header of a saved step.

    Attributes:
        graph: what is computed.
        executable: what runs.
        budget: bytes that the process is held to while it runs.
        inputs: of the first part, in order.
        outputs: names of what each part gives; an empty one is not for the caller.
        extents: where the storages of the first part's inputs lie, in the order of the data.
        random_state: where the state of the CPU generator lies, at the end of the data.
        changed: (output, input) of the first part: the output becomes the input's new value.
        rule: the optimizer's, an empty text where the step has none.
        updates: one per parameter that the step updates.
        schema: version of this layout.
    """

    graph: Graph
    executable: Executable
    budget: Bytes
    inputs: tuple[Named, ...]
    outputs: tuple[tuple[str, ...], ...]
    extents: tuple[Extent, ...]
    random_state: Extent
    changed: tuple[tuple[int, int], ...] = ()
    rule: Literal["", "tightrope.sgd_", "tightrope.adam_"] = ""
    updates: tuple[UpdateRow, ...] = ()
    schema: Literal[2] = SCHEMA_VERSION

    @property
    def num_bytes(self) -> Bytes:
        """Length of the data."""
        return round_up(self.random_state.offset + self.random_state.bytes, _ALIGNMENT)


class Opened(NamedTuple):
    """A header, and the file behind it at the first byte of its data."""

    bundle: Bundle
    file: BinaryIO
    start: Offset

    def read_into(self, extent: Extent, memory: memoryview) -> None:
        """Fill memory of exactly the extent's bytes.

        Raises:
            PlanFileError: the file has changed meanwhile.
        """
        self.file.seek(self.start + extent.offset)
        view = memory.cast("B")
        if len(view) != extent.bytes or self.file.readinto(view) != extent.bytes:  # type: ignore[attr-defined]
            raise PlanFileError(f"storage {extent.storage}: the file ends before its {extent.bytes} bytes.")


def extents_of(sizes: Iterable[tuple[StorageId, Bytes]]) -> tuple[Extent, ...]:
    """Lay storages out one behind the other.

    >>> extents_of([(3, 100), (-1, 8)])
    (Extent(storage=3, offset=0, bytes=100), Extent(storage=-1, offset=128, bytes=8))
    """
    found, offset = [], 0
    for storage, size in sizes:
        found.append(Extent(storage, offset, size))
        offset += round_up(size, _ALIGNMENT)
    return tuple(found)


def check_bundle(bundle: Bundle) -> None:
    """Check that a header is well formed, and its graph and executable too.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    check_graph(bundle.graph)
    check_executable(bundle.executable)
    if bundle.executable.graph != bundle.graph.fingerprint:
        refuse("bundle: $.executable.graph", bundle.executable.graph, "the fingerprint of $.graph")
    within(bundle.budget, "bundle: $.budget", low=1)
    parts = bundle.graph.parts
    if not 1 <= len(parts) <= 2 or len({part.call for part in parts}) > 1:
        refuse("bundle: $.graph.parts", parts, "one, or the forward and the backward of one call")
    if len(bundle.inputs) != len(parts[0].inputs):
        refuse("bundle: $.inputs", bundle.inputs, f"an array of {len(parts[0].inputs)}: one per input")
    names = [given.name for given in bundle.inputs]
    for name in names:
        if names.count(name) > 1:
            refuse("bundle: $.inputs", name, "a name that is given once")
    if [len(row) for row in bundle.outputs] != [len(part.outputs) for part in parts]:
        refuse("bundle: $.outputs", bundle.outputs, "one name for each output of each part")
    _check_extents(bundle)
    _check_changes(bundle)


def _check_extents(bundle: Bundle) -> None:
    few(bundle.extents, "bundle: $.extents")
    views = [given.view for given in bundle.graph.parts[0].inputs if given.view is not None]
    wanted = sorted({view.base for view in views} - {EMPTY})
    if [extent.storage for extent in bundle.extents] != wanted:
        found = [extent.storage for extent in bundle.extents]
        odd = next((s for s in (*found, *wanted) if (s in found) != (s in wanted)), found)
        refuse("bundle: $.extents", odd, "one for each storage of the inputs, ascending")
    offset = 0
    for position, extent in enumerate((*bundle.extents, bundle.random_state)):
        where = f"bundle: $.extents[{position}]" if extent.storage >= 0 else "bundle: $.random_state"
        if extent.storage >= 0:
            size = bundle.graph.storages[extent.storage].bytes
            if extent.bytes != size:
                refuse(f"{where}.bytes", extent.bytes, f"those of storage {extent.storage}, {size}")
        elif position < len(bundle.extents):
            refuse(f"{where}.storage", extent.storage, "a storage of the graph")
        if extent.offset != offset:
            refuse(f"{where}.offset", extent.offset, f"where the one before ends, {offset}")
        offset = round_up(extent.offset + extent.bytes, _ALIGNMENT)
    if bundle.random_state.storage != -1:
        refuse("bundle: $.random_state.storage", bundle.random_state.storage, "-1")
    within(bundle.random_state.bytes, "bundle: $.random_state.bytes", low=1, high=_MAX_RANDOM)


def _check_changes(bundle: Bundle) -> None:
    inputs, outputs = len(bundle.inputs) - 1, len(bundle.outputs[0]) - 1
    for position, (output, given) in enumerate(bundle.changed):
        within(output, f"bundle: $.changed[{position}]", high=outputs)
        within(given, f"bundle: $.changed[{position}]", high=inputs)
    if bundle.updates and not bundle.rule:
        refuse("bundle: $.rule", bundle.rule, "the rule of the updates")
    few(bundle.updates, "bundle: $.updates", most=len(bundle.inputs))
    for position, row in enumerate(bundle.updates):
        where = f"bundle: $.updates[{position}]"
        within(row.parameter, f"{where}.parameter", high=inputs)
        within(row.settings, f"{where}.settings", high=inputs)
        if bundle.inputs[row.settings].role != "settings":
            refuse(f"{where}.settings", row.settings, "an input with the role of settings")
        few(row.options, f"{where}.options", most=_MAX_NUMBERS)
        for _, numbers in row.options:
            few(numbers, f"{where}.options", most=_MAX_NUMBERS)


def write_bundle(path: str | Path, bundle: Bundle, data: Iterable[memoryview]) -> None:
    """Write a file, which takes its place when it is complete.

    Args:
        path: where.
        bundle: header.
        data: bytes of each extent, in order, the random state last.

    Raises:
        PlanFileError: the header is not well formed, or the data is not what it says.
        OSError: it cannot be written.
    """
    header = dump(bundle, check_bundle)
    if len(header) > MAX_FILE_BYTES:
        raise PlanFileError(f"the header has {len(header)} bytes; at most {MAX_FILE_BYTES} are read again.")
    with replacing(path) as file:
        file.write(_FRAME.pack(MAGIC, len(header), bundle.num_bytes))
        file.write(header)
        _pad(file)
        for extent, memory in zip((*bundle.extents, bundle.random_state), data, strict=True):
            if memory.nbytes != extent.bytes:
                raise PlanFileError(f"storage {extent.storage} has {memory.nbytes} of {extent.bytes} bytes.")
            file.write(memory)
            _pad(file)


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))


def open_bundle(file: BinaryIO, name: str) -> Opened:
    """Read the header of a file, and check the file's length against it.

    Args:
        file: at its beginning, seekable.
        name: what messages call it.

    Raises:
        PlanFileError: it is no such file, or a damaged one; says what is wrong.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    frame = file.read(_FRAME.size)
    if frame[: len(MAGIC)] != MAGIC:
        raise PlanFileError(
            f"{name!r} is no saved step: it begins with {frame[: len(MAGIC)]!r}, not {MAGIC!r}. "
            f"{recognized(frame) or 'Give a file that tightrope.save wrote.'}"
        )
    if len(frame) < _FRAME.size:
        raise PlanFileError(
            f"{name!r} is cut off: it has {size} bytes, and its frame alone {_FRAME.size}. Save it again."
        )
    _, num_header, num_data = _FRAME.unpack(frame)
    within(num_header, f"{name!r}: bytes of the header", high=MAX_FILE_BYTES)
    within(num_data, f"{name!r}: bytes of the data", high=_MAX_DATA)
    start = round_up(_FRAME.size + num_header, _ALIGNMENT)
    if start + num_data != size:
        raise PlanFileError(
            f"{name!r} has {size} bytes and says that it has {start + num_data}: it is cut off or damaged. "
            "Save it again."
        )
    bundle = load(file.read(num_header), Bundle, check_bundle)
    if bundle.num_bytes != num_data:
        raise PlanFileError(
            f"{name!r}: its storages take {bundle.num_bytes} bytes, its data has {num_data}: it is damaged. "
            "Save it again."
        )
    return Opened(bundle, file, start)
