"""Write an executable as C: one array, one line per instruction, constants for every address.

Idea        Read the executable once. Every buffer has an address in the arena or in the slower tier
            already; a run becomes a call of its kernel, a copy a call of page_in or page_out. Allocations,
            releases and waits need no code: copies end before they return.
Guarantee   Every address is the executable's; nothing is allocated that it does not have. The arena is as
            large as the executable's arena, and page_in and page_out move what its copies move.
Complexity  Linear in the instructions.
Gaps        One part; no copy runs beside the processor.
"""

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files

from msgspec import Struct

from tightrope.core import Alloc, Bytes, Copy, Executable, Graph, Offset, Run, StorageId, TightropeError, View
from tightrope.core.executable import ARENA, SLOWER
from tightrope.core.values import EMPTY, ITEM_BYTES, views
from tightrope_micro.calls import call_of
from tightrope_micro.given import kernel_name
from tightrope_micro.tiles import TiledGraph

_POINTERS = {"float32": "F", "int32": "I", "uint8": "B", "int8": "C", "int16": "S"}
_STEP = "One forward, backward and update; returns the loss."


class HeldValue(Struct, frozen=True):
    """What the caller holds in the slower tier.

    Attributes:
        name: of a parameter, a buffer, momentum or an input.
        kind: parameter, buffer, optimizer_state or input.
        label: dtype and shape.
        offset: in the slower tier.
        bytes: of it.
        first: byte of the named value that it begins with; above 0 for tiles of a weight behind the first.
    """

    name: str
    kind: str
    label: str
    offset: Offset
    bytes: Bytes
    first: Bytes = 0


class PageCounts(Struct, frozen=True):
    """Copies of one step between the arena and the slower tier."""

    pages_in: int = 0
    bytes_in: Bytes = 0
    pages_out: int = 0
    bytes_out: Bytes = 0


class NetText(Struct, frozen=True):
    """What inference needs in addition to its plan.

    Attributes:
        texts: file name -> text, of constants and kernels that were made for the net.
        returned: what the function returns, in words.
        header: lines for the header: formats, and how many bytes are returned.
        columns: bytes of the stack that a layer may take for the windows that it multiplies.
    """

    texts: Mapping[str, str]
    returned: str
    header: str
    columns: Bytes


class CSource(Struct, frozen=True):
    """The C of a step.

    Attributes:
        texts: file name -> text.
        arena: bytes of the array.
        storage: bytes of the slower tier that the step touches.
        held: what the caller holds there, by address.
        pages: of one step.
        kernels: used, in alphabetical order.
    """

    texts: Mapping[str, str]
    arena: Bytes
    storage: Bytes
    held: tuple[HeldValue, ...]
    pages: PageCounts
    kernels: tuple[str, ...]


def resource(name: str) -> str:
    """Read a file of the C library."""
    return (files("tightrope_micro") / "c" / name).read_text(encoding="utf-8")


def emit(tiled: TiledGraph, executable: Executable, net: NetText | None = None) -> CSource:
    """Write the C of an executable.

    Args:
        tiled: the graph that it computes.
        executable: placed, of one part, which the judge has passed.
        net: of inference, its constants and what is said of its formats; None = of a training step.

    Raises:
        TightropeError: it is not one that this can write.
    """
    graph = tiled.graph
    allocs = {event.buffer: event for event in executable.flat() if isinstance(event, Alloc)}
    if not executable.placed or any(1 < a.space != ARENA and a.space < SLOWER for a in allocs.values()):
        raise TightropeError(
            "only a plan with addresses can be written as C, of a step that returns at its end."
        )
    kernels = tuple(sorted({kernel_name(run) for run in executable.runs()}))
    held = _held(tiled, allocs)
    arena = executable.spaces[ARENA].capacity
    storage = max((a.offset + executable.charged(a) for a in allocs.values() if a.space >= SLOWER), default=0)
    output = _returned(executable, allocs, scalar=net is None)
    entry = _entry(output, net)
    texts = {
        "tightrope_micro.h": _header(arena, storage, held, entry, net),
        "support.h": resource("support.h"),
        **({} if net is None else {"products.h": resource("products.h")}),
        **({"reference.h": resource("reference.h")} if _as_reference(kernels) else {}),
        "kernels.h": _prototypes(kernels, net),
        "kernels.c": _kernels(kernels),
        "step.c": _step(graph, executable, allocs, held, entry),
        "host_main.c": resource("host_main.c" if net is None else "net_main.c"),
        **({} if net is None else net.texts),
    }
    return CSource(texts, arena, storage, held, _pages(executable, allocs), kernels)


def _held(tiled: TiledGraph, allocs: Mapping[int, Alloc]) -> tuple[HeldValue, ...]:
    graph = tiled.graph
    first: dict[StorageId, Alloc] = {}
    for alloc in allocs.values():
        if alloc.space >= SLOWER and graph.storages[alloc.storage].home:
            first.setdefault(alloc.storage, alloc)
    found = []
    for storage, alloc in first.items():
        one = graph.storages[storage]
        found.append(
            HeldValue(
                one.module, str(one.kind), one.label, alloc.offset, alloc.bytes, tiled.origin[storage][1]
            )
        )
    return tuple(sorted(found, key=lambda one: one.offset))


class _Entry(Struct, frozen=True):
    """The function that the library is called by.

    Attributes:
        declared: return type and name.
        returns: what it returns.
        about: what it does.
        includes: what its file needs beside the kernels.
    """

    declared: str
    returns: str
    about: str
    includes: str = ""


def _entry(output: View, net: NetText | None) -> _Entry:
    if net is None:
        return _Entry("float tightrope_step", "*{}", _STEP)
    about = f"One forward; returns {net.returned}, which are there until the next call."
    return _Entry("const void *tightrope_infer", "{}", about, '#include "net.h"\n')


def _returned(executable: Executable, allocs: Mapping[int, Alloc], *, scalar: bool) -> View:
    outputs = executable.instructions[-1]
    found = [view for value in getattr(outputs, "outputs", ()) for view in views(value)]
    found = [view for view in found if view.shape == () or not scalar]
    if not found or any(allocs[view.base].space != ARENA for view in found):
        raise TightropeError("the step returns no loss: the model's forward must return it first.")
    return found[0]


def _pages(executable: Executable, allocs: Mapping[int, Alloc]) -> PageCounts:
    ways: dict[bool, list[Bytes]] = {True: [], False: []}
    for event in executable.instructions:
        if isinstance(event, Copy):
            ways[allocs[event.source].space >= SLOWER].append(allocs[event.source].bytes)
    return PageCounts(len(ways[True]), sum(ways[True]), len(ways[False]), sum(ways[False]))


def _header(
    arena: Bytes, storage: Bytes, held: Iterable[HeldValue], entry: _Entry, net: NetText | None
) -> str:
    what, more = ("A training step", "") if net is None else ("Inference", net.header)
    inputs = [one for one in held if one.kind == "input"]
    sample = sum(one.bytes for one in inputs)
    return f"""/* {what} within {arena} bytes of RAM beside the stack; written by Tightrope. */
#ifndef TIGHTROPE_MICRO_H
#define TIGHTROPE_MICRO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define TR_ARENA_BYTES {arena}u
#define TR_STORAGE_BYTES {storage}u
#define TR_NUM_INPUTS {len(inputs)}
#define TR_SAMPLE_BYTES {sample}u

/* Where an input lies in the slower tier: write it there before a step. */
typedef struct {{
    uint32_t offset, bytes;
}} tr_place;
extern const tr_place tr_inputs[];

/* Copies since the start. */
typedef struct {{
    uint64_t pages_in, bytes_in, pages_out, bytes_out;
}} tr_counters;
extern tr_counters tr_pages;

extern unsigned char tr_arena[TR_ARENA_BYTES];

/* Yours: read and write the slower tier, and return when it is done. */
void tr_storage_read(uint32_t offset, void *to, uint32_t bytes);
void tr_storage_write(uint32_t offset, const void *from, uint32_t bytes);

{more}/* {entry.about} */
{entry.declared}(void);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _as_reference(kernels: Iterable[str]) -> bool:
    """Tell whether sums are rounded as TensorFlow Lite's reference kernels round them."""
    return any(name.startswith("t_") for name in kernels)


def _prototypes(kernels: Iterable[str], net: NetText | None) -> str:
    lines = [re.sub(r"\s+", " ", _text(name).split("{")[0].split("*/")[1]).strip() + ";" for name in kernels]
    shared = '#include "support.h"\n'
    if net is not None:
        rounding = "#define TR_REFERENCE\n" if _as_reference(kernels) else ""
        shared = f'#define TR_COLUMNS {net.columns}\n{rounding}#include "products.h"\n'
    return f"{shared}\n" + "\n".join(lines) + "\n"


def _kernels(kernels: Iterable[str]) -> str:
    return '#include "kernels.h"\n\n' + "\n".join(_text(name) for name in kernels)


def _text(kernel: str) -> str:
    """Text of a kernel; a gradient with AdamW is the one with gradient descent, with another update."""
    if kernel.endswith("_adamw"):
        text = _text(f"{kernel.removesuffix('adamw')}sgd").replace("_sgd(", "_adamw(")
        return text.replace("tr_rule ", "tr_adamw ").replace("tr_update(", "tr_update_adamw(")
    return resource(f"kernels/{kernel}.c")


def _step(
    graph: Graph,
    executable: Executable,
    allocs: Mapping[int, Alloc],
    held: Iterable[HeldValue],
    entry: _Entry,
) -> str:
    """Write the file with the step: the arena, the link to storage, and the instructions."""

    def pointer(view: View | None) -> str:
        if view is None:
            return "0"
        if view.base == EMPTY:
            return f"K{_POINTERS[view.dtype]}({view.offset * ITEM_BYTES[view.dtype]})"
        at = allocs[view.base].offset + view.offset * ITEM_BYTES[view.dtype]
        return f"{_POINTERS[view.dtype]}({at})"

    lines = []
    for instruction in executable.instructions:
        if isinstance(instruction, Run):
            call = call_of(instruction, pointer)
            if (
                "(tr_rule)" in call or "(tr_adamw)" in call
            ):  # a block of its own, so that all rules share one place on the stack
                call = f"{{ {call} }}"
            lines.append(f"{call} /* {_said(graph, instruction)} */")
        elif isinstance(instruction, Copy):
            lines.append(_copy(graph, allocs[instruction.source], allocs[instruction.target]))
    output = _returned(executable, allocs, scalar="step" in entry.declared)
    inputs = ", ".join(f"{{{one.offset}u, {one.bytes}u}}" for one in held if one.kind == "input")
    arena = executable.spaces[ARENA]
    links = "".join(_link(way) for way in ("in", "out") if any(f"page_{way}(" in line for line in lines))
    return f"""#include "tightrope_micro.h"

#include "kernels.h"
{entry.includes}
_Alignas({max(arena.alignment, 4)}) unsigned char tr_arena[TR_ARENA_BYTES];
tr_counters tr_pages;
const tr_place tr_inputs[] = {{{inputs or "{0u, 0u}"}}};

#define F(at) ((float *)(void *)(tr_arena + (at)))
#define I(at) ((int32_t *)(void *)(tr_arena + (at)))
#define B(at) ((uint8_t *)(tr_arena + (at)))
#define C(at) ((int8_t *)(tr_arena + (at)))
#define S(at) ((int16_t *)(void *)(tr_arena + (at)))

{links}{entry.declared}(void)
{{
    {chr(10).join(lines).replace(chr(10), chr(10) + "    ")}
    return {entry.returns.format(pointer(output))};
}}
"""


def _link(way: str) -> str:
    """Write the function that all pages of one direction go through."""
    call = "tr_storage_read" if way == "in" else "tr_storage_write"
    return f"""static void page_{way}(uint32_t offset, uint32_t at, uint32_t bytes)
{{
    tr_pages.pages_{way}++;
    tr_pages.bytes_{way} += bytes;
    {call}(offset, tr_arena + at, bytes);
}}

"""


def _copy(graph: Graph, source: Alloc, target: Alloc) -> str:
    slow, fast, way = (source, target, "in") if source.space >= SLOWER else (target, source, "out")
    storage = graph.storages[fast.storage]
    name = comment(f"{storage.module} {storage.label}".strip())
    return f"page_{way}({slow.offset}u, {fast.offset}u, {fast.bytes}u); /* {name}: {fast.bytes} B */"


def _said(graph: Graph, run: Run) -> str:
    op = graph.ops[run.op]
    read = sum(graph.storages[s].bytes for s in op.reads)
    made = sum(graph.storages[s].bytes for s in op.creates)
    over = ", in place" if run.target.endswith(".over") else ""
    changed = f", changes {sum(graph.storages[s].bytes for s in op.mutates)} B" if op.mutates else ""
    where = f" ({op.source})" if op.source else ""
    return comment(f"{op.module or 'model'}{where}: reads {read} B, makes {made} B{over}{changed}")


def comment(text: str) -> str:
    """Text that cannot end a comment.

    >>> comment("a */ b")
    'a * / b'
    """
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")
