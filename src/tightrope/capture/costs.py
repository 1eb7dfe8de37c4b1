"""Prices for the ops of a captured program, measured one by one.

Nothing here needs more memory than some plan needs anyway: each op is run alone, on the caller's
own parameters and inputs where it reads those, and on made-up tensors for the rest. An op that
does not fit alone is the witness that no plan can.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from msgspec.structs import replace

from tightrope.capture import _torch
from tightrope.capture.build import input_nodes
from tightrope.capture.program import Call, Program, tensor_of
from tightrope.core import (
    Allocation,
    CaptureError,
    Graph,
    InfeasibleError,
    Kind,
    Op,
    Storage,
    StorageId,
    format_bytes,
)
from tightrope.native.allocator import Allocator
from tightrope.price.measure import Measured, measure
from tightrope.price.store import PriceStore

_NORMS = (torch.ops.aten.native_layer_norm.default, torch.ops.aten.native_group_norm.default)

Tick = Callable[[int, int, str], None]
"""Progress: (done, total, what)."""


def price_program(
    program: Program,
    real: Sequence[Any],
    *,
    allocator: Allocator | None,
    store: PriceStore,
    tick: Tick | None = None,
) -> Program:
    """Measure every distinct op and return the program with times, temporaries and exact sizes.

    Args:
        program: as captured.
        real: the caller's tensors in placeholder order; missing ones are made up.
        allocator: the hook that records allocations, None = times only.
        store: prices known already; new ones are added and saved.
        tick: called after each op.

    Raises:
        InfeasibleError: an op does not fit alone under the limit that is set.
    """
    graph = program.graph
    given = _given(program, real)
    wide: set[StorageId] = set()
    ops: list[Op] = []
    total = len(graph.ops) + len(graph.replays)
    with _torch.real_tensors(), torch.autocast("cpu", enabled=False), _same_random_state():
        for done, op in enumerate(graph.all_ops()):
            call = program.calls[op.id]
            ops.append(op if call is None else _priced(program, op, call, given, wide, allocator, store))
            wide |= _widened(program, ops[-1]) | _wide_statistics(program, call, allocator)
            if tick is not None:
                tick(done + 1, total, op.target)
    store.save()
    num = len(graph.ops)
    storages = _corrected(graph, ops)
    priced = replace(graph, ops=tuple(ops[:num]), replays=tuple(ops[num:]), storages=storages)
    return _with_graph(program, priced)


@contextmanager
def _same_random_state() -> Iterator[None]:
    """Put the generator back as it was: random ops draw while they are measured."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _widened(program: Program, op: Op) -> set[StorageId]:
    """Storages that hold float32 though the shape functions say a 16-bit type.

    The statistics of a norm are such: on a CPU, with a bfloat16 input and float32 weights, kernels
    return them in float32, which the allocated bytes tell.
    """
    found = set()
    for item in op.allocations:
        fake = tensor_of(program.roots[item.storage]) if item.storage in program.roots else None
        if not isinstance(fake, torch.Tensor) or fake.dtype not in (torch.bfloat16, torch.float16):
            continue
        if item.bytes == 2 * fake.untyped_storage().nbytes():
            found.add(item.storage)
    return found


def _wide_statistics(program: Program, call: Call | None, allocator: Allocator | None) -> set[StorageId]:
    """The same by rule, where no allocation is observed: layer and group norm with float32 weights."""
    if allocator is not None or call is None or call.target not in _NORMS:
        return set()
    weight = next((node for node in input_nodes(call) if tensor_of(node).dtype is torch.float32), None)
    statistics = [node for position, node in call.results.items() if position in (1, 2)]
    return {program.storage_of[node] for node in statistics} if weight is not None else set()


def _priced(
    program: Program,
    op: Op,
    call: Call,
    given: Mapping[StorageId, torch.Tensor],
    wide: set[StorageId],
    allocator: Allocator | None,
    store: PriceStore,
) -> Op:
    key = _key(program, call)
    price = store.get(key)
    if price is None or (allocator is not None and not price.known):
        price = _measure(program, op, call, given, wide, allocator)
        store.put(key, price)
    if not price.known:
        return replace(op, ns=price.ns)
    return replace(op, ns=price.ns, allocations=_allocations(program, op, call, price))


def _allocations(program: Program, op: Op, call: Call, price: Measured) -> tuple[Allocation, ...]:
    """Map results to storages; a created storage that no result names is matched in order."""
    named = {
        0 if position is None else position: program.storage_of[node]
        for position, node in call.results.items()
        if node in program.storage_of and program.storage_of[node] in op.creates
    }
    results = [result for _, result, _, _ in price.allocations if result >= 0]
    unnamed = [storage for storage in op.creates if storage not in named.values()]
    for result in sorted(set(results) - set(named)):
        if unnamed:
            named[result] = unnamed.pop(0)
    found = tuple(
        Allocation(size, named.get(result, -1), start, end) for size, result, start, end in price.allocations
    )
    made = sorted(item.storage for item in found if item.storage >= 0)
    if made != sorted(op.creates):
        raise CaptureError(
            f"{op.describe()} makes other allocations than its shapes say: it cannot be planned."
        )
    ticks = 1 + max((max(item.start, item.end) for item in found), default=0)
    return tuple(
        Allocation(
            item.bytes, item.storage, item.start, ticks if item.storage < 0 and item.end < 0 else item.end
        )
        for item in found
    )


def _measure(
    program: Program,
    op: Op,
    call: Call,
    given: Mapping[StorageId, torch.Tensor],
    wide: set[StorageId],
    allocator: Allocator | None,
) -> Measured:
    inputs: dict[torch.fx.Node, Any] = {}
    try:
        buffers: dict[StorageId, torch.UntypedStorage] = {}
        for node in input_nodes(call):
            dtype = torch.float32 if program.storage_of.get(node, -1) in wide else None
            inputs[node] = _made_up(program, node, given, buffers, dtype)
        args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), lambda node: inputs[node])
        return measure(lambda: call.target(*args, **kwargs), allocator)
    except torch.OutOfMemoryError as error:
        raise _does_not_fit(program.graph, op, allocator, str(error).splitlines()[0]) from error


def _does_not_fit(graph: Graph, op: Op, allocator: Allocator | None, reason: str) -> InfeasibleError:
    needs = sum(graph.storages[s].size for s in {*op.reads, *op.creates} if not graph.storages[s].external)
    asked = allocator.limit or 0 if allocator is not None else 0
    bound = graph.persistent + needs
    return InfeasibleError(
        f"asked {format_bytes(asked)}: {op.describe()} alone does not fit beside what the step must hold "
        f"({format_bytes(graph.persistent)} parameters, state, inputs + at least {format_bytes(needs)} for "
        f"this op). {reason}. Use a smaller batch or a larger budget.",
        asked=asked,
        lower_bound=bound,
        op=op.describe(),
    )


def _made_up(
    program: Program,
    node: torch.fx.Node,
    given: Mapping[StorageId, torch.Tensor],
    buffers: dict[StorageId, torch.UntypedStorage],
    dtype: torch.dtype | None,
) -> torch.Tensor:
    fake = program.constant(node) if node.op == "get_attr" else tensor_of(node)
    assert isinstance(fake, torch.Tensor)
    storage = program.storage_of.get(node, -1)
    if storage >= 0 and program.graph.storages[storage].kind is Kind.RANDOM_STATE:
        return torch.default_generator.get_state()
    dtype = dtype or fake.dtype
    shape, stride, offset = tuple(fake.shape), tuple(fake.stride()), int(fake.storage_offset())
    if storage in given:
        source = given[storage].untyped_storage()
    elif storage in buffers:
        source = buffers[storage]
    else:
        size = (
            program.graph.storages[storage].bytes * dtype.itemsize // fake.dtype.itemsize
            if storage >= 0
            else 0
        )
        source = torch.UntypedStorage(size, device=fake.device)  # type: ignore[no-untyped-call]
        buffers[storage] = source
        whole = torch.empty(0, dtype=dtype, device=fake.device).set_(source)
        whole.fill_(0.5 if dtype.is_floating_point else dtype is torch.bool)
    return torch.empty(0, dtype=dtype, device=fake.device).set_(source, offset, shape, stride)


def _given(program: Program, real: Sequence[Any]) -> dict[StorageId, torch.Tensor]:
    """The caller's tensors by storage, where they look as captured."""
    found = {}
    for node, tensor in zip(program.placeholders, real, strict=False):
        fake = tensor_of(node)
        if not isinstance(tensor, torch.Tensor) or not isinstance(fake, torch.Tensor):
            continue
        alike = (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.shape == fake.shape
            and tensor.dtype == fake.dtype
        )
        if alike and not str(node.target).startswith("tangents"):
            found[program.storage_of[node]] = tensor
    return found


def _key(program: Program, call: Call) -> str:
    """Name the op with everything that its time and work space depend on."""
    order: dict[StorageId, int] = {}

    def describe(node: torch.fx.Node) -> str:
        fake = program.constant(node) if node.op == "get_attr" else tensor_of(node)
        assert isinstance(fake, torch.Tensor)
        group = order.setdefault(program.storage_of.get(node, -1), len(order))
        size = int(fake.untyped_storage().nbytes())
        return f"{fake.dtype}{tuple(fake.shape)}{tuple(fake.stride())}+{fake.storage_offset()}@{group}:{size}"

    def text(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return describe(value)
        if isinstance(value, tuple | list):
            return "[" + ",".join(text(item) for item in value) + "]"
        plain_function = callable(value) and not _torch.is_overload(value)
        return value.__qualname__ if plain_function and hasattr(value, "__qualname__") else str(value)

    kwargs = ",".join(f"{key}={text(value)}" for key, value in sorted(call.kwargs.items()))
    return f"{text(call.target)}({text(call.args)};{kwargs})"


def _corrected(graph: Graph, ops: Sequence[Op]) -> tuple[Storage, ...]:
    """Storages with the sizes that were really allocated."""
    real = {item.storage: item.bytes for op in ops for item in op.allocations if item.storage >= 0}
    return tuple(replace(storage, bytes=real.get(storage.id, storage.bytes)) for storage in graph.storages)


def _with_graph(program: Program, graph: Graph) -> Program:
    return Program(
        graph, program.module, program.calls, program.views, program.storage_of, program.roots,
        program.placeholders, program.outputs, program.num_forward_outputs, program.user_outputs,
    )  # fmt: skip
