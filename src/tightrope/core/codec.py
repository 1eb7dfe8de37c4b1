"""Plans, graphs and traces as JSON files.

A file is text that a person can read and diff. Loading one executes nothing: it is parsed into
plain values, every value is checked against a limit, every field against the layout, and every
number against what it stands for. What is wrong raises `PlanFileError`, which names the field and
quotes the value; no other error escapes.

Repeated keys, unknown fields, surplus array items, ``NaN``, text that is not UTF-8 and integers
beyond 2^62 are refused rather than repaired.
"""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from tightrope.core.certificate_check import check_certificate
from tightrope.core.checking import MAX_ID, distinct, few, refuse, within
from tightrope.core.errors import PlanFileError
from tightrope.core.graph import SCHEMA_VERSION, Flag, Graph, Op
from tightrope.core.json_text import MAX_FILE_BYTES, MAX_INT, check_values, parse_json, quote
from tightrope.core.plan import Compute, Free, PageIn, PageOut, Plan, Wait
from tightrope.core.trace import Trace
from tightrope.core.trace_check import check_tables
from tightrope.core.units import Bytes, StorageId

_MAX_BUFFERS: Final = 10_000_000
_MAX_EVENTS: Final = 2 * _MAX_BUFFERS
_MAX_ALIGNMENT: Final[Bytes] = 2**30
_ALL_FLAGS: Final = sum(flag.value for flag in Flag)
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_LOCATION: Final = re.compile(r"\$(?:\.\w+|\[\d+\])*")

_T = TypeVar("_T", Plan, Graph, Trace)


def dump_plan(plan: Plan) -> bytes:
    """Write a plan as indented JSON that `load_plan` reads back to an equal plan.

    Raises:
        PlanFileError: the plan has a value that no file may hold.
    """
    return _dump(plan, check_plan)


def load_plan(data: bytes) -> Plan:
    """Read a plan.

    The result is well formed by itself; whether it is right for a graph is for
    `tightrope.judge.judge_plan` to say.

    Raises:
        PlanFileError: the data is not a plan of this version; names the field and quotes the value.
    """
    return _load(data, Plan, check_plan)


def dump_graph(graph: Graph) -> bytes:
    """Write a graph as indented JSON that `load_graph` reads back to an equal graph.

    Raises:
        PlanFileError: the graph is not well formed, see `check_graph`.
    """
    return _dump(graph, check_graph)


def load_graph(data: bytes) -> Graph:
    """Read a graph.

    Raises:
        PlanFileError: the data is not a well-formed graph of this version.
    """
    return _load(data, Graph, check_graph)


def dump_trace(trace: Trace) -> bytes:
    """Write a trace as indented JSON that `load_trace` reads back to an equal trace.

    Raises:
        PlanFileError: the trace is not well formed.
    """
    return _dump(trace, _check_trace)


def load_trace(data: bytes) -> Trace:
    """Read a trace.

    Raises:
        PlanFileError: the data is not a well-formed trace of this version.
    """
    return _load(data, Trace, _check_trace)


def read_file(path: str | Path, *, limit: Bytes = MAX_FILE_BYTES) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises:
        PlanFileError: there is no such file, it is not a regular file, cannot be read, or is larger.
    """
    try:
        file = Path(path)
        if not file.is_file():
            raise PlanFileError(
                f"{str(path)!r} is not a file: give the path of a plan, graph or trace in JSON."
            )
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        raise PlanFileError(f"{str(path)!r} cannot be read: {error}.") from error
    if len(data) > limit:
        raise PlanFileError(f"{str(path)!r} is larger than {limit} bytes, the most that is read.")
    return data


def _dump(value: _T, check: Callable[[_T], None]) -> bytes:
    check(value)
    try:
        check_values(msgspec.to_builtins(value), type(value).__name__.lower())
        return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PlanFileError(f"this {type(value).__name__.lower()} cannot be written: {error}.") from error


def _load(data: bytes, kind: type[_T], check: Callable[[_T], None]) -> _T:
    name = kind.__name__.lower()
    tree = parse_json(data, name)
    _check_schema(tree, name)
    check_values(tree, name)
    _check_fields(tree, inspect.type_info(kind), "$", name)
    try:
        value = msgspec.convert(tree, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        at = _LOCATION.search(str(error))
        where = at[0] if at else "$"
        what = str(error).split(" - at ")[0]
        raise PlanFileError(f"{name}: {where} = {quote(_lookup(tree, where))}: {what}.") from error
    check(value)
    return value


def _check_schema(tree: Any, name: str) -> None:
    if not isinstance(tree, dict):
        raise PlanFileError(f"{name}: $ = {quote(tree)}: a {name} file holds one JSON object.")
    if "schema" not in tree:
        raise PlanFileError(f"{name}: $.schema is missing: every {name} file says the version of its layout.")
    schema = tree["schema"]
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise PlanFileError(f"{name}: $.schema = {quote(schema)}: must be the integer {SCHEMA_VERSION}.")
    if schema != SCHEMA_VERSION:
        age, step = (
            ("newer", "update tightrope") if schema > SCHEMA_VERSION else ("older", f"make the {name} again")
        )
        raise PlanFileError(
            f"{name}: $.schema = {quote(schema)}: the file is {age} than this version, "
            f"which reads schema {SCHEMA_VERSION}; {step}."
        )


def _check_fields(value: Any, info: inspect.Type, path: str, name: str) -> None:
    """Refuse unknown fields and surplus array items, which conversion would pass over."""
    if isinstance(info, inspect.VarTupleType) and isinstance(value, list):
        if isinstance(info.item_type, inspect.StructType | inspect.UnionType):
            for position, item in enumerate(value):
                _check_fields(item, info.item_type, f"{path}[{position}]", name)
    elif isinstance(info, inspect.UnionType) and isinstance(value, list) and value:
        for member in info.types:
            if isinstance(member, inspect.StructType) and member.tag == value[0]:
                _check_fields(value, member, path, name)
    elif isinstance(info, inspect.UnionType) and isinstance(value, dict):
        for member in info.types:
            if isinstance(member, inspect.StructType) and not member.array_like:
                _check_fields(value, member, path, name)
    elif isinstance(info, inspect.StructType) and info.array_like and isinstance(value, list):
        most = len(info.fields) + (info.tag is not None)
        if len(value) > most:
            raise PlanFileError(
                f"{name}: {path} = {quote(value[most])} as item {most}: has at most {most} items."
            )
    elif isinstance(info, inspect.EnumType) and isinstance(value, int) and value < 0:
        raise PlanFileError(f"{name}: {path} = {value}: flags are not negative.")
    elif isinstance(info, inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field.type for field in info.fields}
        for key, item in value.items():
            if key not in known:
                expected = ", ".join(sorted(known))
                raise PlanFileError(f"{name}: {path} has unknown field {quote(key)}; it has {expected}.")
            _check_fields(item, known[key], f"{path}.{key}", name)


def _lookup(tree: Any, path: str) -> Any:
    for field, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        tree = tree[field] if field else tree[int(index)]
    return tree


def check_plan(plan: Plan) -> None:
    """Check that a plan is well formed by itself, without its graph.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    if not _HEX.fullmatch(plan.fingerprint):
        refuse("plan: $.fingerprint", plan.fingerprint, "64 hexadecimal digits")
    _check_steps(plan)
    few(plan.offsets, "plan: $.offsets", most=_MAX_BUFFERS)
    for position, offset in enumerate(plan.offsets):
        within(offset, f"plan: $.offsets[{position}]", low=-1)
    within(plan.budget, "plan: $.budget")
    for name in ("persistent", "peak", "arena", "outside", "ns", "base_ns"):
        within(getattr(plan.forecast, name), f"plan: $.forecast.{name}")
    if not plan.placed and plan.offsets:
        refuse("plan: $.offsets", plan.offsets, "empty, because the plan is not placed")
    check_certificate(plan.certificate)
    _check_reasons(plan)
    for field, amounts in (("forecast.tiers", plan.forecast.tiers), ("limits.bytes", plan.limits.bytes)):
        for position, limit in enumerate(amounts):
            within(limit, f"plan: $.{field}[{position}]")
    for where, amount in (
        ("forecast.joules", plan.forecast.joules),
        ("limits.seconds", plan.limits.seconds),
        ("limits.joules", plan.limits.joules),
    ):
        if amount is not None and not 0 <= amount < math.inf:
            refuse(f"plan: $.{where}", amount, "a finite number that is not negative")


def _check_steps(plan: Plan) -> None:
    few(plan.schedule.steps, "plan: $.schedule.steps")
    for position, step in enumerate(plan.schedule.steps):
        where = f"plan: $.schedule.steps[{position}]"
        match step:
            case Compute(op, drop):
                within(op, f"{where}.op", high=MAX_ID)
                for storage in drop:
                    within(storage, f"{where}.drop", high=MAX_ID)
                distinct(drop, f"{where}.drop")
            case PageOut(storage, tier) | PageIn(storage, tier) | Free(storage, tier):
                within(storage, f"{where}.storage", high=MAX_ID)
                within(tier, f"{where}.tier", low=0 if isinstance(step, Free) else 1, high=16)
            case Wait(storage):
                within(storage, f"{where}.storage", high=MAX_ID)


def _check_reasons(plan: Plan) -> None:
    few(plan.reasons, "plan: $.reasons")
    _unique((reason.storage for reason in plan.reasons), "plan: $.reasons[{}].storage", "explained once")
    for position, reason in enumerate(plan.reasons):
        where = f"plan: $.reasons[{position}]"
        within(reason.storage, f"{where}.storage", high=MAX_ID)
        within(reason.bytes, f"{where}.bytes")
        within(reason.ns, f"{where}.ns")
        within(reason.copies, f"{where}.copies", high=MAX_ID)


def _unique(items: Iterable[int | str], where: str, must: str) -> None:
    seen: set[int | str] = set()
    for position, item in enumerate(items):
        if item in seen:
            refuse(where.format(position), item, must)
        seen.add(item)


def check_graph(graph: Graph) -> None:
    """Check that a graph is well formed.

    Guarantees for a graph that passes: ids are positions; reads are ascending and made by an earlier
    op or by the caller; every other storage is made by exactly one op; a replay belongs to exactly
    one op and makes only what that op makes; the allocations of every op name each created storage
    once, with its bytes, and release every temporary.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    for name in ("ops", "storages", "replays"):
        few(getattr(graph, name), f"graph: $.{name}")
    within(graph.split, "graph: $.split", low=-1, high=len(graph.ops))
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
    _check_replays(graph)


def _check_storages(graph: Graph) -> None:
    for position, storage in enumerate(graph.storages):
        where = f"graph: $.storages[{position}]"
        if storage.id != position:
            refuse(f"{where}.id", storage.id, f"its position {position}")
        within(storage.bytes, f"{where}.bytes")
        if storage.alignment.bit_count() != 1 or not 1 <= storage.alignment <= _MAX_ALIGNMENT:
            refuse(f"{where}.alignment", storage.alignment, f"a power of two between 1 and {_MAX_ALIGNMENT}")
    total = sum(storage.size for storage in graph.storages)
    if total > MAX_INT:
        refuse("graph: $.storages", graph.storages, f"at most 2^62 bytes in all, not {total}")


def _check_op(graph: Graph, op: Op, position: int, where: str) -> None:
    if op.id != position:
        refuse(f"{where}.id", op.id, f"its position {position}")
    for field in ("reads", "creates", "mutates"):
        storages = getattr(op, field)
        for storage in storages:
            within(storage, f"{where}.{field}", high=len(graph.storages) - 1)
        distinct(storages, f"{where}.{field}")
    if list(op.reads) != sorted(op.reads):
        refuse(f"{where}.reads", list(op.reads), "in ascending order")
    for storage in op.mutates:
        if storage not in op.reads:
            refuse(f"{where}.mutates", storage, "among the storages that the op reads")
    within(op.ns, f"{where}.ns")
    within(op.flags.value, f"{where}.flags", high=_ALL_FLAGS)
    if op.replay != -1:
        within(op.replay, f"{where}.replay", low=len(graph.ops), high=len(graph.ops) + len(graph.replays) - 1)
    _check_allocations(graph, op, where)


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


def _check_replays(graph: Graph) -> None:
    base_of: dict[int, Op] = {}
    for op in graph.ops:
        if op.replay in base_of:
            refuse(
                f"graph: $.ops[{op.id}].replay",
                op.replay,
                f"of this op alone, not of op {base_of[op.replay].id} too",
            )
        if op.replay >= 0:
            base_of[op.replay] = op
    for position, replay in enumerate(graph.replays):
        where, number = f"graph: $.replays[{position}]", len(graph.ops) + position
        _check_op(graph, replay, number, where)
        if number not in base_of:
            refuse(f"{where}.id", number, "the replay of an op")
        base = base_of[number]
        if replay.replay != -1:
            refuse(f"{where}.replay", replay.replay, "-1: a replay has no replay of its own")
        if replay.mutates:
            refuse(f"{where}.mutates", replay.mutates[0], "empty: a replay changes nothing in place")
        for storage in replay.creates:
            if storage not in base.creates:
                refuse(f"{where}.creates", storage, f"made by op {base.id}, which it replays")
        for storage in replay.reads:
            if storage in replay.creates:
                refuse(f"{where}.reads", storage, "something else than what the replay makes")


def _check_trace(trace: Trace) -> None:
    check_tables(trace)
    few(trace.buffers, "trace: $.buffers", most=_MAX_BUFFERS)
    within(trace.num_events, "trace: $.num_events", high=_MAX_EVENTS)
    begun = 0
    for position, buffer in enumerate(trace.buffers):
        where = f"trace: $.buffers[{position}]"
        within(buffer.bytes, f"{where}.bytes")
        within(buffer.start, f"{where}.start", low=begun, high=trace.num_events)
        within(buffer.end, f"{where}.end", low=buffer.start + 1, high=trace.num_events)
        within(buffer.offset, f"{where}.offset", low=-1)
        within(buffer.storage, f"{where}.storage", low=-1, high=MAX_ID)
        begun = buffer.start
    for position, event in enumerate(trace.events):
        where = f"trace: $.events[{position}]"
        within(event.start, f"{where}.start")
        within(event.end, f"{where}.end", low=event.start)
        within(event.op, f"{where}.op", low=-1, high=MAX_ID)
