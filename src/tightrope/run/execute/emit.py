"""Flat Python code for an executable: one function per part, no interpreter loop.

Idea        Every `Run` becomes one call with its kernel bound to a name, every `Release` a ``del`` of
            all names that look into the buffer. A tensor is the first result that its buffer holds,
            or a view of it by sizes and strides, which costs no bytes; a result that is written over an
            input is such a view. A part returns its outputs and the tensors that the next part of its
            call needs; one that announces gradients is a generator, which yields them.
            Pages of one call are an object that its parts hand on like a tensor
            (`tightrope.run.execute.page_file`).
Guarantee   Between two instructions, exactly the buffers that are live are referenced. Parts of
            different calls share nothing, so calls may come back in any order.
Complexity  Linear in instructions.
Gaps        CPU dispatch costs about 2 to 4 us per op, or fused stretch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from msgspec.structs import replace

from tightrope.capture import _torch
from tightrope.core import (
    Alloc,
    Announce,
    Argument,
    Bytes,
    Copy,
    Executable,
    Fused,
    Graph,
    Input,
    Instruction,
    Items,
    Name,
    Release,
    Resume,
    Return,
    Run,
    Sync,
    TightropeError,
    View,
)
from tightrope.core.executable import ARENA, SLOWER
from tightrope.core.values import EMPTY, ITEM_BYTES, views
from tightrope.fuse.build import compiled
from tightrope.fuse.program import FusedProgram, program_of
from tightrope.price.device import device_named
from tightrope.price.kernels import Kernel, constant, dtype_of, resolve, with_bits
from tightrope.run.execute.page_file import Pages

Wrap: TypeAlias = Callable[[Run | Fused, Kernel], Kernel]
"""Puts something around the kernel of a run, or the function of a stretch: a list of tensors -> tensors."""
PartCode: TypeAlias = Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]
"""(what the part before kept, inputs), both emptied -> (outputs, what the next part needs). A part that
announces some is a generator: it yields lists of outputs, of which one has the others."""
_PAGES: Final = "p0"
"""Name of the pages of a call."""
Lease: TypeAlias = Callable[[], Pages]
"""Reserves the pages of one execution."""


@dataclass(frozen=True)
class Code:
    """Parts of an executable as functions.

    Attributes:
        parts: one per part.
        kept: per part, names of what it keeps for the next part of its call: ``b12`` is buffer 12 of the
            executable, ``x3`` input 3.
        visible: per part, positions in what it keeps that the caller can also reach (and might change).
        source: the Python text, for people and tests.
    """

    parts: tuple[PartCode, ...]
    kept: tuple[tuple[str, ...], ...]
    visible: tuple[tuple[int, ...], ...]
    source: str


def emit(
    graph: Graph,
    executable: Executable,
    *,
    wrap: Wrap | None = None,
    allow: tuple[str, ...] | None = None,
    lease: Lease | None = None,
) -> Code:
    """Compile an executable into flat Python functions.

    Args:
        graph: that it was lowered from; says which parts belong to one call.
        executable: that a judge has accepted.
        wrap: put around every kernel.
        allow: see `tightrope.price.kernels.resolve`.
        lease: reserves the pages of one execution.

    Raises:
        TightropeError: a target is not known here, or something is paged and there is nowhere to page to.
    """
    shared = _Shared(graph, executable, allow, wrap)
    if any(isinstance(instruction, Copy) for instruction in executable.instructions):
        if lease is None:
            raise TightropeError(
                "this plan pages and has nowhere to page to: compile the model with page_to=."
            )
        shared.constants["lease"] = lease
    parts = [_Part(shared) for _ in range(max(1, len(graph.parts)))]
    position = -1
    for instruction in executable.instructions:
        position += isinstance(instruction, Resume)
        if position >= 0:
            parts[position].take(instruction)
    calls = [part.call for part in graph.parts] or [0]
    lines: list[str] = []
    keeps, visible = [], []
    for number, part in enumerate(parts):
        later = [parts[k] for k in range(number + 1, len(parts)) if calls[k] == calls[number]]
        needed = sorted({name for other in later for name in other.imports}, key=_by_number)
        kept = [name for name in needed if name in part.made or name in part.imports]
        lines += part.text(number, kept)
        keeps.append(tuple(kept))
        visible.append(tuple(k for k, name in enumerate(kept) if name[0] == "x" or name in part.returned))
    source = "\n".join(lines) + "\n"
    namespace = dict(shared.constants)
    exec(compile(source, "<tightrope executable>", "exec"), namespace)
    functions = tuple(namespace[f"part_{k}"] for k in range(len(parts)))
    return Code(functions, tuple(keeps), tuple(visible), source)


class _Shared:
    """What all parts have in common.

    Attributes:
        roots: the view that stands in a name: a buffer ``b12``, an input ``x3``.
        held: storage of the caller -> name of the first input that looks into it.
        used: buffers that some instruction reads.
        constants: values without a literal, by name.
        taken: inputs that parts have taken so far.
        paged: the page that each buffer of a slower tier is, or that a buffer in the arena is filled from.
        leased: whether a part so far reserves pages.
    """

    def __init__(
        self, graph: Graph, executable: Executable, allow: tuple[str, ...] | None, wrap: Wrap | None
    ) -> None:
        self.allow, self.wrap, self.device = allow, wrap, device_named(graph.environment)
        self.roots: dict[str, View] = {}
        self.held: dict[int, str] = {}
        self.used: set[int] = set()
        self.constants: dict[str, Any] = {"other_view": other_view, "room": room}
        self.leased = False
        self._known: dict[object, str] = {}
        self.taken = number = 0
        self.paged: dict[int, Alloc] = {}
        looks = {r.view.base: r.view for op in graph.ops for r in op.results}
        for instruction in executable.instructions:
            match instruction:
                case Alloc(buffer, space) if space >= SLOWER:
                    self.paged[buffer] = instruction
                case Alloc(buffer, space, _, _, storage) if space == ARENA:
                    self.roots[f"b{buffer}"] = replace(looks[storage], base=buffer)
                case Copy(source, target):
                    self.used.update((source, target))
                    if target not in self.paged:
                        self.paged[target] = self.paged[source]
                case Resume(_, inputs):
                    for given in inputs:
                        if given.view is not None:
                            self.roots[f"x{number}"] = given.view
                            self.held.setdefault(given.view.base, f"x{number}")
                        number += 1
                case Run():
                    for result in instruction.results:  # one that is written over an input is a view of it
                        self.roots.setdefault(f"b{result.view.base}", result.view)
                    values = (*instruction.arguments, *(value for _, value in instruction.keywords))
                    self.used.update(view.base for value in values for view in views(value))
                case Fused(runs):
                    self._note_fused(runs)
                case Return(_, outputs):
                    self.used.update(view.base for value in outputs for view in views(value))
                case _:
                    pass

    def _note_fused(self, runs: tuple[Run, ...]) -> None:
        for run in runs:
            self.roots |= {f"b{r.view.base}": r.view for r in run.results if r.view.base >= 0}
            values = (*run.arguments, *(value for _, value in run.keywords))
            self.used.update(view.base for value in values for view in views(value))

    def root(self, view: View) -> str:
        """Name what a view is derived from."""
        if view.input >= 0:
            return f"x{view.input}"
        return self.held.get(view.base, f"b{view.base}")

    def constant(self, key: object, make: Callable[[], Any]) -> str:
        """Bind a value to a name, once."""
        if key not in self._known:
            self._known[key] = name = f"k{len(self._known)}"
            self.constants[name] = make()
        return self._known[key]

    def kernel(self, run: Run) -> str:
        """Name the kernel of a run."""
        found = resolve(run.target, allow=self.allow)
        if self.wrap is None:
            return self.constant(("kernel", run.target), lambda: unwrapped(found))
        wrapped = self.wrap(run, unwrapped(found))
        return self.constant(("run", id(run)), lambda: wrapped)

    def fused(self, fused: Fused, program: FusedProgram) -> str:
        """Name the function of a fused stretch."""
        if self.wrap is None:
            return self.constant(("fused", program.key), lambda: compiled(program))
        wrapped = self.wrap(fused, compiled(program))
        return self.constant(("stretch", id(fused)), lambda: wrapped)


def unwrapped(kernel: Kernel) -> Kernel:
    """The builtin behind an overload, which is cheaper to call."""
    found: Kernel = getattr(kernel, "_op", kernel) if _torch.is_overload(kernel) else kernel
    return found


def other_view(
    root: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    shift: int,
    bits: str,
) -> torch.Tensor:
    """Look into the memory of a tensor as another dtype, ``shift`` bytes behind its first element."""
    start = (root.storage_offset() * root.element_size() + shift) // dtype.itemsize
    made = torch.empty(0, dtype=dtype, device=root.device)
    made = made.set_(root.untyped_storage(), start, shape, strides)
    return with_bits(made, bits)


def room(size: Bytes) -> torch.Tensor:
    """Memory for a page, at its planned address."""
    return torch.empty(size, dtype=torch.uint8)


@dataclass
class _Part:
    """Lines of one function while they are being written.

    Attributes:
        made: names that stand for something in this part.
        derived: by root name, the names of views of it.
        imports: names that an earlier part of the same call must hand over.
        returned: names of buffers that the caller gets.
        announced: outputs that it got already, by position.
    """

    shared: _Shared
    lines: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    derived: dict[str, dict[View, str]] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)
    outputs: str = ""
    announced: dict[int, Argument] = field(default_factory=dict)
    number: int = 0
    over: bool = False

    def take(self, instruction: Instruction) -> None:
        if self.over:  # what follows a return is released by the caller
            return
        match instruction:
            case Resume(_, inputs):
                self._resume(inputs)
            case Run():
                self._run(instruction)
            case Fused():
                self._fused(instruction)
            case Release(buffer):
                self._release(f"b{buffer}")
            case Announce():
                self._announce(instruction)
            case Return(_, outputs):
                self.outputs = self._listed({k: v for k, v in enumerate(outputs) if k not in self.announced})
                found = (view for value in outputs for view in views(value) if view.base != EMPTY)
                self.returned, self.over = {self.shared.root(view) for view in found}, True
            case Alloc(buffer, space, size) if space == ARENA:
                self._room(buffer, size)
            case Copy(source, target):
                self._copy(source, target)
            case Sync(target):
                self.lines.append(f"{self._pages()}.wait({self.shared.paged[target].buffer})")

    def _resume(self, inputs: tuple[Input, ...]) -> None:
        for _ in inputs:
            self.inputs.append(f"x{self.shared.taken}")
            self.made.add(f"x{self.shared.taken}")
            self.shared.taken += 1

    def _announce(self, announce: Announce) -> None:
        """Yield outputs that no name stands for any more: then autograd takes them over without a copy."""
        mine = dict(zip(announce.positions, announce.outputs, strict=True))
        self.announced |= mine
        self.lines.append(f"handed = [[{self._listed(mine)}]]")
        for root in dict.fromkeys(self.shared.root(view) for value in mine.values() for view in views(value)):
            self._release(root)
        self.lines.append("yield handed.pop()")

    def _listed(self, outputs: Mapping[int, Argument]) -> str:
        """Outputs by position, up to the last of these; None for others."""
        last = max(outputs, default=-1)
        return ", ".join(self._expression(outputs.get(k)) for k in range(last + 1))

    def _run(self, run: Run) -> None:
        arguments = [self._expression(value) for value in run.arguments]
        for name, _ in run.keywords:
            if not name.isidentifier():  # it becomes Python text
                raise TightropeError(f"{name!r:.80} is no name of an argument.")
        arguments += [f"{name}={self._expression(value)}" for name, value in run.keywords]
        text = f"{self.shared.kernel(run)}({', '.join(arguments)})"
        new = [result for result in run.results if f"b{result.view.base}" not in self.made]
        wanted = [result for result in new if result.view.base in self.shared.used]
        self.made.update(f"b{result.view.base}" for result in wanted)
        if len(wanted) == 1 and wanted[0].position == -1:
            self.lines.append(f"b{wanted[0].view.base} = {text}")
        elif wanted:
            self.lines.append(f"results = {text}")
            self.lines += [f"b{result.view.base} = results[{result.position}]" for result in wanted]
            self.lines.append("del results")
        else:
            self.lines.append(text)

    def _fused(self, fused: Fused) -> None:
        program, given, made = program_of(fused, threads=torch.get_num_threads())
        arguments = ", ".join(self._tensor(view) for view in given)
        names = [f"b{buffer}" for buffer in made]
        self.made.update(names)
        self.lines.append(f"[{', '.join(names)}] = {self.shared.fused(fused, program)}([{arguments}])")

    def _release(self, name: str) -> None:
        if name in self.made:
            gone = [name, *self.derived.pop(name, {}).values()]
            self.made.difference_update(gone)
            self.lines.append(f"del {', '.join(gone)}")

    def _pages(self) -> str:
        """Name the pages of the call: reserved by the first part that has some."""
        if _PAGES not in self.made:
            self.made.add(_PAGES)
            if self.shared.leased:
                self.imports.add(_PAGES)
            else:
                self.shared.leased = True
                self.lines.append(f"{_PAGES} = lease()")
        return _PAGES

    def _room(self, buffer: int, size: Bytes) -> None:
        """Allocate what a page is read into."""
        looks, name = self.shared.roots[f"b{buffer}"], f"b{buffer}"
        dtype = self.shared.constant(Name("dtype", looks.dtype), lambda: dtype_of(looks.dtype))
        shift = looks.offset * ITEM_BYTES[looks.dtype]
        self.lines.append(
            f"{name} = other_view(room({size}), {dtype}, {looks.shape}, {looks.strides}, {shift}, "
            f"{looks.bits!r})"
        )
        self.made.add(name)

    def _copy(self, source: int, target: int) -> None:
        """Hand a copy to the thread; what it needs of the tensor is its memory."""
        page = self.shared.paged[target]
        way, buffer = ("out", source) if page.buffer == target else ("back", target)
        name = self._tensor(replace(self.shared.roots[f"b{buffer}"], base=buffer, input=-1))
        self.lines.append(
            f"{self._pages()}.{way}({page.buffer}, {name}.untyped_storage().data_ptr(), {page.bytes}, "
            f"{page.offset}, {name})"
        )

    def _expression(self, value: Argument) -> str:
        if isinstance(value, View):
            return self._tensor(value)
        if isinstance(value, Items):
            return f"[{', '.join(self._expression(item) for item in value.items)}]"
        if isinstance(value, Name):
            return self.shared.constant(value, lambda: self._constant(value))
        return repr(value)

    def _constant(self, value: Name) -> Any:
        found = constant(value, allow=self.shared.allow)
        return unwrapped(found) if value.kind == "op" else found

    def _tensor(self, view: View) -> str:
        if view.base == EMPTY:
            return self.shared.constant(view, lambda: _empty(view, self.shared.device))
        root = self.shared.root(view)
        looks = self.shared.roots[root]
        if root not in self.made:
            self.imports.add(root)
            self.made.add(root)
        if (view.dtype, view.shape, view.strides, view.offset, view.bits) == (
            looks.dtype, looks.shape, looks.strides, looks.offset, looks.bits,
        ):  # fmt: skip
            return root
        known = self.derived.setdefault(root, {})
        if view not in known:
            known[view] = name = f"v{self.number}"
            self.number += 1
            self.lines.append(f"{name} = {self._derived(root, looks, view)}")
        return known[view]

    def _derived(self, root: str, looks: View, view: View) -> str:
        if (view.dtype, view.bits) == (looks.dtype, looks.bits):
            shift = view.offset - looks.offset
            offset = (
                f", {root}.storage_offset() + {shift}" if root[0] == "x" and shift else f", {view.offset}"
            )
            return f"{root}.as_strided({view.shape}, {view.strides}{offset if shift else ''})"
        dtype = self.shared.constant(Name("dtype", view.dtype), lambda: dtype_of(view.dtype))
        shift = view.offset * ITEM_BYTES[view.dtype] - looks.offset * ITEM_BYTES[looks.dtype]
        return f"other_view({root}, {dtype}, {view.shape}, {view.strides}, {shift}, {view.bits!r})"

    def text(self, number: int, kept: list[str]) -> list[str]:
        """Write the function down."""
        imported = ", ".join(sorted(self.imports, key=_by_number))
        inputs = ", ".join(self.inputs)
        handed = {name for name in self.returned if name[0] == "b"}  # or they would keep themselves alive
        keeping = ", ".join(f"{name}.detach()" if name in handed else name for name in kept)
        body = [
            f"[{imported}] = kept" if imported else "",
            "kept.clear()",
            f"[{inputs}] = given" if inputs else "",
            "given.clear()",
            *self.lines,
            f"return [{self.outputs}], [{keeping}]",
        ]
        return [f"def part_{number}(kept, given):", *(f"    {line}" for line in body if line), ""]


def _by_number(name: str) -> tuple[str, int]:
    return name[0], int(name[1:])


def _empty(view: View, device: torch.device) -> torch.Tensor:
    """A tensor without bytes (batch norm saves such in evaluation mode)."""
    with _torch.real_tensors():
        return torch.empty_strided(view.shape, view.strides, dtype=dtype_of(view.dtype), device=device)
