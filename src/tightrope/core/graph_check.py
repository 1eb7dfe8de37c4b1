"""What makes a graph well formed."""

from collections.abc import Sequence
from typing import Final

from tightrope.core.checking import distinct, few, refuse, within
from tightrope.core.graph import RETURN, Flag, Graph, Op
from tightrope.core.json_text import MAX_INT
from tightrope.core.units import Bytes, StorageId
from tightrope.core.values import CONSTANTS, EMPTY, ITEM_BYTES, Argument, Part, View, views

_MAX_EVENTS: Final = 20_000_000
_MAX_ALIGNMENT: Final[Bytes] = 2**30
_MAX_DIMS: Final = 64
_MAX_RESULTS: Final = 10_000
_MAX_TIER: Final = 16
_MAX_PARTS: Final = 100_000
_DIGITS: Final = 12
_PASSED: Final = "_passed"
_ALL_FLAGS: Final = sum(flag.value for flag in Flag)


def check_graph(graph: Graph) -> None:
    """Check that a graph is well formed.

    Guarantees for a graph that passes: ids are positions; reads are ascending and made by an earlier
    op or by the caller; every other storage is made by exactly one op; a variant belongs to
    exactly one op and makes only what that op makes; the allocations of every op name each created storage
    once, with its bytes, and release every temporary; arguments look into what the op reads, inside its
    bytes, through an input that is that storage and handed over, and results into what it creates; no op
    reads what another call makes, or what is handed over with a later part.

    A graph does not change, so one that passed is not looked at again.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    if _PASSED not in graph.__dict__:
        _check(graph)
        graph.__dict__[_PASSED] = True


def _check(graph: Graph) -> None:
    for name in ("ops", "storages", "variants"):
        few(getattr(graph, name), f"graph: $.{name}")
    _check_storages(graph)
    made: set[StorageId] = set()
    for position, op in enumerate(graph.ops):
        where = f"graph: $.ops[{position}]"
        _check_op(graph, op, position, where)
        for storage in op.reads:
            if storage not in made and not graph.storages[storage].external:
                refuse(f"{where}.reads", storage, "made by the caller or by an earlier op")
        for storage in op.creates:
            if storage in made or graph.storages[storage].external:
                refuse(f"{where}.creates", storage, "made by this op alone")
        made.update(op.creates)
    for entry in graph.storages:
        if not entry.external and entry.id not in made:
            refuse(f"graph: $.storages[{entry.id}].external", False, "true, or an op must make the storage")
    _check_variants(graph)
    _check_parts(graph)


def _check_storages(graph: Graph) -> None:
    for position, storage in enumerate(graph.storages):
        where = f"graph: $.storages[{position}]"
        if storage.id != position:
            refuse(f"{where}.id", storage.id, f"its position {position}")
        within(storage.bytes, f"{where}.bytes")
        if storage.alignment != graph.alignment:
            refuse(f"{where}.alignment", storage.alignment, f"that of the graph, {graph.alignment}")
        within(storage.home, f"{where}.home", high=_MAX_TIER if storage.external else 0)
    if graph.alignment.bit_count() != 1 or not 1 <= graph.alignment <= _MAX_ALIGNMENT:
        refuse("graph: $.alignment", graph.alignment, f"a power of two between 1 and {_MAX_ALIGNMENT}")
    total = sum(storage.size for storage in graph.storages)
    if total > MAX_INT:
        refuse("graph: $.storages", graph.storages, f"at most 2^62 bytes in all, not {total}")


def _check_op(graph: Graph, op: Op, position: int, where: str) -> None:
    if op.id != position:
        refuse(f"{where}.id", op.id, f"its position {position}")
    for field in ("reads", "creates", "mutates"):
        storages = getattr(op, field)
        for storage in storages:
            if not 0 <= storage < len(graph.storages):
                within(storage, f"{where}.{field}", high=len(graph.storages) - 1)
        if len(storages) > 1:
            distinct(storages, f"{where}.{field}")
    if list(op.reads) != sorted(op.reads):
        refuse(f"{where}.reads", list(op.reads), "in ascending order")
    for storage in op.mutates:
        if storage not in op.reads:
            refuse(f"{where}.mutates", storage, "among the storages that the op reads")
    within(op.ns, f"{where}.ns")
    within(op.hidden, f"{where}.hidden")
    within(op.flags.value, f"{where}.flags", high=_ALL_FLAGS)
    if op.variant != -1:
        within(
            op.variant, f"{where}.variant", low=len(graph.ops), high=len(graph.ops) + len(graph.variants) - 1
        )
    if op.over != -1 and (op.over not in op.reads or not op.creates):
        refuse(f"{where}.over", op.over, "a storage that the op reads, of an op that makes any, or -1")
    _check_allocations(graph, op, where)
    _check_values(graph, op, where)


def _check_values(graph: Graph, op: Op, where: str) -> None:
    seen: set[StorageId] = set()
    for position, argument in enumerate((*op.arguments, *(value for _, value in op.keywords))):
        for view in (argument,) if type(argument) is View else views(argument):
            if not _is_inside(graph, view):
                _check_view(graph, view, f"{where}.arguments[{position}]")
            seen.add(view.base)
    seen.discard(EMPTY)
    if (op.arguments or op.keywords) and seen != set(op.reads):
        odd = min(seen ^ set(op.reads))
        refuse(f"{where}.reads", odd, "what the views of the arguments look into, no more and no less")
    made = [result.view.base for result in op.results]
    for number, result in enumerate(op.results):
        if not _is_inside(graph, result.view):
            _check_view(graph, result.view, f"{where}.results[{number}].view")
        within(result.position, f"{where}.results[{number}].position", low=-1, high=_MAX_RESULTS)
    if op.results and made != list(op.creates) and sorted(made) != sorted(op.creates):
        refuse(f"{where}.results", made, f"one for each storage that the op creates: {list(op.creates)}")
    distinct([result.position for result in op.results], f"{where}.results")


def _is_inside(graph: Graph, view: View) -> bool:
    """Tell quickly that nothing is wrong with a view; False = look closer, to say what."""
    base, shape, strides = view.base, view.shape, view.strides
    if not 0 <= base < len(graph.storages) or view.dtype not in ITEM_BYTES or len(shape) > _MAX_DIMS:
        return False
    if len(shape) != len(strides) or min(0, *shape, *strides, view.offset) < 0 or 0 in shape:
        return False
    return max(view.offset, 0, *shape, *strides) <= MAX_INT and view.end <= graph.storages[base].bytes


def _check_view(graph: Graph, view: View, where: str) -> None:
    if view.base != EMPTY:
        within(view.base, f"{where}.base", high=len(graph.storages) - 1)
    if view.dtype not in ITEM_BYTES:
        refuse(f"{where}.dtype", view.dtype, f"one of {', '.join(ITEM_BYTES)}")
    if len(view.shape) != len(view.strides) or len(view.shape) > _MAX_DIMS:
        refuse(f"{where}.strides", view.strides, f"as many as there are sizes, at most {_MAX_DIMS}")
    for size in (*view.shape, *view.strides, view.offset):
        within(size, where)
    held = _constant_bytes(graph) if view.base == EMPTY else graph.storages[view.base].bytes
    if view.end > held:
        refuse(f"{where}.shape", view.shape, f"inside its base: it ends at byte {view.end} of {held}")


def _constant_bytes(graph: Graph) -> Bytes:
    """Bytes of the constants in flash that the graph of a microcontroller says it has."""
    said = dict(graph.environment).get(CONSTANTS, "0")
    return int(said) if said.isdecimal() and len(said) < _DIGITS else 0


def _check_allocations(graph: Graph, op: Op, where: str) -> None:
    begun, named = 0, []
    for position, allocation in enumerate(graph.allocations(op)):
        at = f"{where}.allocations[{position}]"
        within(allocation.bytes, f"{at}.bytes")
        within(allocation.start, f"{at}.start", low=begun, high=_MAX_EVENTS)
        begun = allocation.start
        if allocation.storage == -1:
            within(allocation.end, f"{at}.end", low=begun + 1, high=_MAX_EVENTS)
            continue
        if allocation.storage not in op.creates:
            refuse(f"{at}.storage", allocation.storage, "-1 or a storage that the op creates")
        if allocation.end != -1:
            refuse(f"{at}.end", allocation.end, "-1, because a created storage survives the op")
        if allocation.bytes != (expected := graph.storages[allocation.storage].bytes):
            refuse(f"{at}.bytes", allocation.bytes, f"the storage's {expected} bytes")
        named.append(allocation.storage)
    distinct(named, f"{where}.allocations")
    if len(named) != len(op.creates):
        missing = min(set(op.creates) - set(named))
        refuse(f"{where}.creates", missing, "among the op's allocations")


def _check_variants(graph: Graph) -> None:
    base_of: dict[int, Op] = {}
    for op in graph.ops:
        if op.variant in base_of:
            refuse(
                f"graph: $.ops[{op.id}].variant",
                op.variant,
                f"of this op alone, not of op {base_of[op.variant].id} too",
            )
        if op.variant >= 0:
            base_of[op.variant] = op
    for position, variant in enumerate(graph.variants):
        where, number = f"graph: $.variants[{position}]", len(graph.ops) + position
        _check_op(graph, variant, number, where)
        if number not in base_of:
            refuse(f"{where}.id", number, "the recompute variant of an op")
        base = base_of[number]
        if variant.variant != -1:
            refuse(f"{where}.variant", variant.variant, "-1: a variant has no variant of its own")
        if variant.mutates:
            refuse(f"{where}.mutates", variant.mutates[0], "empty: a variant changes nothing in place")
        for storage in variant.creates:
            if storage not in base.creates:
                refuse(f"{where}.creates", storage, f"made by op {base.id}, whose variant it is")
        for storage in variant.reads:
            if storage in variant.creates:
                refuse(f"{where}.reads", storage, "something else than what the variant makes")


def _check_parts(graph: Graph) -> None:
    if not graph.parts:
        return
    few(graph.parts, "graph: $.parts", most=_MAX_PARTS)
    begin = 0
    for position, part in enumerate(graph.parts):
        where = f"graph: $.parts[{position}]"
        within(part.end, f"{where}.end", low=begin, high=len(graph.ops))
        begin = part.end
        within(part.call, f"{where}.call", high=_MAX_PARTS)
        if position < len(graph.parts) - 1 and (part.end < 1 or graph.ops[part.end - 1].target != RETURN):
            refuse(f"{where}.end", part.end, f"right after an op {RETURN}, which hands the outputs over")
        _check_handed(graph, part, where)
    if begin != len(graph.ops):
        refuse("graph: $.parts", begin, f"the last one ends with the graph, at {len(graph.ops)}")
    _check_calls(graph)
    _check_inputs(graph)


def _check_inputs(graph: Graph) -> None:
    """Refuse a look through an input that is not handed over yet, or that stands for another storage."""
    handed: list[StorageId | None] = []
    begin = 0
    for position, part in enumerate(graph.parts):
        handed += [None if given.view is None else given.view.base for given in part.inputs]
        for op in graph.ops[begin : part.end]:
            again = (graph.variants[op.variant - len(graph.ops)],) if op.variant != -1 else ()
            for one in (op, *again):
                _check_looks(
                    (*one.arguments, *(v for _, v in one.keywords)), handed, f"graph: $.ops[{op.id}]"
                )
        _check_looks(part.outputs, handed, f"graph: $.parts[{position}].outputs")
        begin = part.end
    first: dict[StorageId, int] = {}
    for position, part in enumerate(graph.parts):
        for given in part.inputs:
            if given.view is not None:
                first.setdefault(given.view.base, position)
    for op in graph.ops:
        for storage in op.reads:
            if first.get(storage, 0) > graph.part_of(op.id):
                refuse(f"graph: $.ops[{op.id}].reads", storage, "handed over by then, not with a later part")


def _check_looks(values: Sequence[Argument], handed: Sequence[StorageId | None], where: str) -> None:
    for value in values:
        for view in views(value):
            if view.input != -1 and not (0 <= view.input < len(handed) and handed[view.input] == view.base):
                refuse(f"{where}.input", view.input, f"-1, or an input so far that is storage {view.base}")


def _check_handed(graph: Graph, part: Part, where: str) -> None:
    few(part.inputs, f"{where}.inputs")
    for number, given in enumerate(part.inputs):
        if given.view is not None:
            _check_view(graph, given.view, f"{where}.inputs[{number}].view")
            if given.view.base != EMPTY and not graph.storages[given.view.base].external:
                refuse(f"{where}.inputs[{number}].view", given.view.base, "a storage of the caller")
    few(part.outputs, f"{where}.outputs")
    for number, value in enumerate(part.outputs):
        for view in views(value):
            _check_view(graph, view, f"{where}.outputs[{number}]")


def _check_calls(graph: Graph) -> None:
    """Refuse a read across calls; what a call makes is its own."""
    maker = {storage: graph.part_of(op.id) for op in graph.ops for storage in op.creates}
    for op in graph.ops:
        call = graph.parts[graph.part_of(op.id)].call
        for storage in op.reads:
            if storage in maker and graph.parts[maker[storage]].call != call:
                refuse(f"graph: $.ops[{op.id}].reads", storage, f"made by call {call} or by the caller")
