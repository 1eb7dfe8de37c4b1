"""What makes an executable well formed: numbers in their ranges, and nothing that looks outside its memory.

Whether it computes the right thing is for the judge to say.
"""

import keyword
import re
from collections.abc import Sequence
from typing import Final

from tightrope.core.checking import MAX_ID, distinct, few, refuse, within
from tightrope.core.executable import (
    ARENA,
    CALLER,
    HEAP,
    SLOWER,
    Alloc,
    Announce,
    Copy,
    Executable,
    Fused,
    Instruction,
    Release,
    Resume,
    Return,
    Run,
    Sync,
    Wire,
)
from tightrope.core.units import Bytes
from tightrope.core.values import EMPTY, INNER, ITEM_BYTES, Argument, Items, Name, View, views
from tightrope.core.wire import Collective, Decode, Encode, Recv, Send

_MAX_SPACES: Final = 64
_MAX_ALIGNMENT: Final[Bytes] = 2**30
_MAX_BUFFERS: Final = 10_000_000
_MAX_DIMS: Final = 64
_MAX_RESULTS: Final = 10_000
_MAX_PARTS: Final = 100_000
_MAX_ENGINES: Final = 128
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_WHAT: Final = re.compile(r"[A-Za-z0-9_.]{1,64}", re.ASCII)
_TARGET: Final = re.compile(r"[A-Za-z_]\w{0,199}(\.[A-Za-z_]\w{0,199}){1,2}", re.ASCII)


def check_executable(executable: Executable) -> None:
    """Check that an executable is well formed.

    Guarantees for one that passes: buffers are numbered in the order in which they begin, end at most
    once and are live where they are named; every allocation has a space, and its address lies inside
    the space's capacity, at a multiple of its alignment; every view looks inside its buffer; targets
    and keywords are plain names; parts are numbered in order.

    Raises:
        PlanFileError: names the field and quotes the value.

    Example:
        >>> from tightrope.core import Space
        >>> spaces = tuple(Space(name, 2**20) for name in ("caller", "arena", "heap"))
        >>> check_executable(Executable("0" * 64, spaces, (Resume(0), Return(-1))))
    """
    if not _HEX.fullmatch(executable.graph):
        refuse("executable: $.graph", executable.graph, "a fingerprint of 64 hexadecimal digits")
    _check_memories(executable)
    few(executable.instructions, "executable: $.instructions")
    walk = _Live(executable)
    for position, instruction in enumerate(executable.instructions):
        walk.take(instruction, f"executable: $.instructions[{position}]")


def _check_memories(executable: Executable) -> None:
    spaces = executable.spaces
    few(spaces, "executable: $.spaces", most=_MAX_SPACES)
    if len(spaces) < SLOWER:
        refuse("executable: $.spaces", spaces, f"at least {SLOWER}: caller, arena, heap")
    for position, space in enumerate(spaces):
        where = f"executable: $.spaces[{position}]"
        within(space.capacity, f"{where}.capacity")
        if space.alignment.bit_count() != 1 or not 1 <= space.alignment <= _MAX_ALIGNMENT:
            refuse(f"{where}.alignment", space.alignment, f"a power of two between 1 and {_MAX_ALIGNMENT}")
        within(space.tier, f"{where}.tier", high=_MAX_SPACES)


class _Live:
    """The buffers so far."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.bytes: list[Bytes] = []
        self.open: set[int] = set()
        self.inner: dict[int, Bytes] = {}  # values inside the present stretch, and where they end
        self.part = 0
        self.handed: list[int | None] = []  # buffers that inputs so far look into

    def take(self, instruction: Instruction, where: str) -> None:
        match instruction:
            case Alloc():
                self._alloc(instruction, where)
            case Release(buffer):
                self._touch(buffer, f"{where}.buffer")
                self.open.discard(buffer)
            case Run():
                self._run(instruction, where)
            case Fused():
                self._fused(instruction, where)
            case Copy(source, target, engine):
                self._touch(source, f"{where}.source")
                self._touch(target, f"{where}.target")
                within(engine, f"{where}.engine", high=_MAX_ENGINES)
            case Sync(target):
                self._touch(target, f"{where}.target")
            case Announce(positions, outputs):
                few(positions, f"{where}.positions")
                for position in positions:
                    within(position, f"{where}.positions", high=MAX_ID)
                distinct(positions, f"{where}.positions")
                self._arguments(outputs, f"{where}.outputs")
            case Return(op, outputs):
                within(op, f"{where}.op", low=-1, high=MAX_ID)
                self._arguments(outputs, f"{where}.outputs")
            case Resume():
                self._resume(instruction, where)
            case Send() | Recv() | Collective() | Encode() | Decode():
                self._wire(instruction, where)

    def _wire(self, instruction: Wire, where: str) -> None:
        within(instruction.stream, f"{where}.stream", high=_MAX_ENGINES)
        if isinstance(instruction, Send | Recv):
            self._touch(instruction.buffer, f"{where}.buffer")
            within(instruction.peer, f"{where}.peer", high=MAX_ID)
            text = instruction.what
        else:
            self._touch(instruction.source, f"{where}.source")
            self._touch(instruction.target, f"{where}.target")
            within(instruction.ns, f"{where}.ns")
            text = instruction.what if isinstance(instruction, Collective) else instruction.codec
        if not isinstance(instruction, Encode | Decode):
            within(instruction.link, f"{where}.link", high=_MAX_ENGINES)
        if isinstance(instruction, Collective):
            within(instruction.group, f"{where}.group", low=-1, high=MAX_ID)
        if not _WHAT.fullmatch(text):
            refuse(where, text, "letters, digits, dots and underscores, at most 64")

    def _alloc(self, alloc: Alloc, where: str) -> None:
        spaces = self.executable.spaces
        if alloc.buffer != len(self.bytes):
            refuse(f"{where}.buffer", alloc.buffer, f"the next number, {len(self.bytes)}")
        within(alloc.buffer, f"{where}.buffer", high=_MAX_BUFFERS)
        within(alloc.space, f"{where}.space", high=len(spaces) - 1)
        space = spaces[alloc.space]
        within(alloc.bytes, f"{where}.bytes", high=space.capacity)
        within(alloc.storage, f"{where}.storage", low=-1, high=MAX_ID)
        addressed = alloc.space == ARENA and self.executable.placed
        if alloc.space in (CALLER, HEAP) and alloc.offset != -1:
            refuse(f"{where}.offset", alloc.offset, f"-1: {space.name} has no planned addresses")
        if addressed or alloc.offset != -1:
            within(alloc.offset, f"{where}.offset", high=space.capacity - alloc.bytes)
            within(self.executable.charged(alloc), f"{where}.bytes", high=space.capacity - alloc.offset)
            if alloc.offset % space.alignment:
                refuse(f"{where}.offset", alloc.offset, f"a multiple of {space.alignment}")
        self.open.add(alloc.buffer)
        self.bytes.append(alloc.bytes)

    def _touch(self, buffer: int, where: str) -> None:
        if buffer not in self.open and buffer not in self.inner:
            refuse(where, buffer, f"a live buffer: {len(self.bytes)} have begun")

    def _run(self, run: Run, where: str) -> None:
        within(run.op, f"{where}.op", high=MAX_ID)
        within(run.ns, f"{where}.ns")
        if not _TARGET.fullmatch(run.target):
            refuse(f"{where}.target", run.target, "the name of an op, such as aten.mm.default")
        self._arguments(run.arguments, f"{where}.arguments")
        names = [name for name, _ in run.keywords]
        for name in names:
            if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
                refuse(f"{where}.keywords", name, "the name of an argument")
        if len(set(names)) != len(names):
            refuse(f"{where}.keywords", names, "names that are given once")
        self._arguments([value for _, value in run.keywords], f"{where}.keywords")
        few(run.inside, f"{where}.inside")
        for number, event in enumerate(run.inside):
            self.take(event, f"{where}.inside[{number}]")
        for number, result in enumerate(run.results):
            within(result.position, f"{where}.results[{number}].position", low=-1, high=_MAX_RESULTS)
            self._view(result.view, f"{where}.results[{number}].view")
        distinct([result.position for result in run.results], f"{where}.results")

    def _fused(self, fused: Fused, where: str) -> None:
        few(fused.runs, f"{where}.runs")
        few(fused.inside, f"{where}.inside")
        within(fused.ns, f"{where}.ns")
        for number, event in enumerate(fused.inside):
            self.take(event, f"{where}.inside[{number}]")
        for number, run in enumerate(fused.runs):
            if run.inside:
                refuse(f"{where}.runs[{number}].inside", run.inside, "empty: the function allocates")
            for result in run.results:
                if result.view.base == INNER - len(self.inner):
                    self.inner[result.view.base] = result.view.end
            self._run(run, f"{where}.runs[{number}]")
        self.inner.clear()

    def _resume(self, resume: Resume, where: str) -> None:
        if resume.part != self.part:
            refuse(f"{where}.part", resume.part, f"the next part, {self.part}")
        within(resume.part, f"{where}.part", high=_MAX_PARTS)
        self.part += 1
        few(resume.inputs, f"{where}.inputs")
        for number, given in enumerate(resume.inputs):
            if given.view is not None:
                self._view(given.view, f"{where}.inputs[{number}].view")
            self.handed.append(None if given.view is None else given.view.base)

    def _arguments(self, values: Sequence[Argument], where: str) -> None:
        few(values, where)
        for position, value in enumerate(values):
            at = f"{where}[{position}]"
            if isinstance(value, View | Items):
                for view in views(value):
                    self._view(view, at)
                    if view.input != -1 and view.base not in self.handed[view.input : view.input + 1]:
                        refuse(f"{at}.input", view.input, f"-1, or an input that is buffer {view.base}")
            _check_names(value, at)

    def _view(self, view: View, where: str) -> None:
        if view.base != EMPTY:
            self._touch(view.base, f"{where}.base")
        if view.dtype not in ITEM_BYTES:
            refuse(f"{where}.dtype", view.dtype, f"one of {', '.join(ITEM_BYTES)}")
        if len(view.shape) != len(view.strides) or len(view.shape) > _MAX_DIMS:
            refuse(f"{where}.strides", view.strides, f"as many as there are sizes, at most {_MAX_DIMS}")
        for size in (*view.shape, *view.strides, view.offset):
            within(size, where)
        within(view.input, f"{where}.input", low=-1, high=MAX_ID)
        held = self.bytes[view.base] if view.base >= 0 else self.inner.get(view.base, 0)
        if view.end > held:
            refuse(f"{where}.shape", view.shape, f"inside its buffer: it ends at byte {view.end} of {held}")


def _check_names(value: Argument, where: str) -> None:
    if isinstance(value, Items):
        for item in value.items:
            _check_names(item, where)
    elif isinstance(value, Name) and value.kind == "op" and not _TARGET.fullmatch(value.text):
        refuse(where, value.text, "the name of an op, such as aten.mm.default")
