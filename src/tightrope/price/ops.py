"""Prices for the ops of a graph, measured one by one.

Nothing here needs more memory than some plan needs anyway: each op is run alone, on the caller's
own parameters and inputs where it reads those, and on made-up tensors for the rest. An op that
does not fit alone is the witness that no plan can.

What an op returns is compared with what the graph says of it. A kernel that returns statistics of
16-bit values in float32 corrects the graph; any other difference is reported (`Measurements.odd`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from msgspec.structs import replace

from tightrope.core import (
    Allocation,
    Argument,
    CaptureError,
    Graph,
    InfeasibleError,
    Input,
    Items,
    Kind,
    Op,
    Part,
    Result,
    Storage,
    StorageId,
    View,
    format_bytes,
)
from tightrope.core.graph import RETURN
from tightrope.core.values import EMPTY
from tightrope.native.hook.allocator import Allocator
from tightrope.price.device import device_named, same_random_state, saved_state, warm_up, without_casts
from tightrope.price.kernels import dtype_of, resolve, tensor_in, value_of
from tightrope.price.measure import Layout, Measured, measure
from tightrope.price.store import FreshPrices, PriceStore

Tick = Callable[[int, int, str], None]
"""Progress: (done, total, what)."""
_CHECKED: Final = 3
"""Distinct ops, of those with the largest share of the time, that are measured to check kept prices."""
_OFF: Final = 1.15
"""Ratio from which kept prices are not of the machine as it is now: other processes shared it, or do."""


class Odd(NamedTuple):
    """A result that does not look as the graph says: the op, its position in the result, its layout."""

    op: Op
    position: int
    layout: Layout


@dataclass
class Measurements:
    """What was found.

    Attributes:
        graph: with times, temporaries, exact sizes and corrected dtypes.
        odd: results whose strides differ from what the graph says.
    """

    graph: Graph
    odd: list[Odd] = field(default_factory=list)


def price_ops(
    graph: Graph,
    given: Sequence[Any],
    *,
    allocator: Allocator | None,
    store: PriceStore,
    check: bool = False,
    tick: Tick | None = None,
) -> Measurements:
    """Measure every distinct op of a graph; call it outside of every dispatch mode.

    Args:
        graph: as captured.
        given: the caller's tensors in the order of the first part's inputs; missing ones are made up.
        allocator: the hook that records allocations, None = times only.
        store: prices known already; new ones are added and saved.
        check: measure the ops that matter most in any case, and all where these take another time now.
        tick: called after each op.

    Raises:
        InfeasibleError: an op does not fit alone under the limit that is set.
        CaptureError: an op makes other allocations than its shapes say.
    """
    pricing = _Pricing(graph, given, allocator, store)
    if allocator is not None:
        allocator.attach_hidden()
    device = pricing.device
    warm_up(device)
    with torch.autocast("cpu", enabled=False), without_casts(device), same_random_state(device):
        ops = pricing.all_priced(tick)
        if check and pricing.outdated():
            pricing = _Pricing(graph, given, allocator, FreshPrices(graph.environment))
            ops = pricing.all_priced(tick)
    if allocator is not None:
        allocator.tidy()
    pricing.store.save()
    num = len(graph.ops)
    priced = replace(
        graph,
        ops=tuple(ops[:num]),
        variants=tuple(ops[num:]),
        storages=_corrected(graph, ops),
        parts=tuple(pricing.part(part) for part in graph.parts),
    )
    return Measurements(priced, pricing.odd)


class _Pricing:
    """One pass over the ops; earlier results decide how later arguments look."""

    def __init__(
        self, graph: Graph, given: Sequence[Any], allocator: Allocator | None, store: PriceStore
    ) -> None:
        self.graph, self.allocator, self.store = graph, allocator, store
        self.device = device_named(graph.environment)
        self.given = _given(graph, given, self.device)
        self.wide: dict[StorageId, str] = {}
        self.odd: list[Odd] = []
        self.kept: dict[str, list[Op]] = {}
        self.new: set[str] = set()

    def all_priced(self, tick: Tick | None) -> list[Op]:
        """Price every op of the graph."""
        total = len(self.graph.ops) + len(self.graph.variants)
        ops: list[Op] = []
        for done, op in enumerate(self.graph.all_ops()):
            ops.append(op if op.target == RETURN else self.priced(op))
            if tick is not None:
                tick(done + 1, total, op.target)
        return ops

    def outdated(self) -> bool:
        """Measure the kept prices that matter most again, and tell whether they are off by more than 15 %."""
        most = sorted(self.kept.values(), key=lambda ops: sum(op.ns for op in ops))[-_CHECKED:]
        before = sum(ops[0].ns * len(ops) for ops in most)
        now = sum(self._measure(ops[0]).ns * len(ops) for ops in most)
        return not before / _OFF <= now <= before * _OFF

    def priced(self, op: Op) -> Op:
        """Price an op, with its arguments as they really look."""
        op = replace(
            op,
            arguments=tuple(self.widened(value) for value in op.arguments),
            keywords=tuple((name, self.widened(value)) for name, value in op.keywords),
        )
        key = _key(self.graph, op)
        price = self.store.get(key)
        if price is None or (self.allocator is not None and not price.known):
            price = self._measure(op)
            self.store.put(key, price)
            self.new.add(key)
        results = tuple(self._result(op, result, price) for result in op.results)
        op = replace(op, ns=price.ns, results=results, hidden=price.hidden)
        if key not in self.new:
            self.kept.setdefault(key, []).append(op)
        return replace(op, allocations=_allocations(op, price)) if price.known else op

    def _result(self, op: Op, result: Result, price: Measured) -> Result:
        layout = next((found for found in price.layouts if found.position == result.position), None)
        view = result.view
        if layout is None:
            return result
        if (layout.strides, layout.offset, layout.bits) != (view.strides, view.offset, view.bits):
            self.odd.append(Odd(op, result.position, layout))
        if layout.dtype != view.dtype:
            if (view.dtype, layout.dtype) not in _WIDENED:
                self.odd.append(Odd(op, result.position, layout))
            self.wide[view.base] = layout.dtype
        return Result(result.position, self.view(view))

    def view(self, view: View) -> View:
        """A view as it really looks: its storage may hold a wider dtype than captured."""
        wide = self.wide.get(view.base)
        return view if wide is None or view.base == EMPTY else replace(view, dtype=wide)

    def widened(self, value: Argument) -> Argument:
        """An argument as it really looks."""
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, Items) and self.wide:
            return Items(tuple(self.widened(item) for item in value.items))
        return value

    def part(self, part: Part) -> Part:
        """A part as its inputs and outputs really look."""
        inputs = tuple(Input(i.name, None if i.view is None else self.view(i.view)) for i in part.inputs)
        return replace(part, inputs=inputs, outputs=tuple(self.widened(value) for value in part.outputs))

    def _measure(self, op: Op) -> Measured:
        for number in (0, 1):  # what integers are: some kernels count from one
            try:
                return self._run(op, number)
            except torch.OutOfMemoryError as error:
                raise _does_not_fit(self.graph, op, self.allocator, str(error).splitlines()[0]) from error
            except RuntimeError as error:
                refused = error
        raise CaptureError(
            f"{op.describe()} cannot be measured on made-up values ({str(refused).splitlines()[0]}): it "
            "cannot be planned. If the call fails without a plan too, give it other inputs."
        )

    def _run(self, op: Op, number: int) -> Measured:
        made: dict[StorageId, torch.UntypedStorage] = {}
        known: dict[View, torch.Tensor] = {}
        kernel = resolve(op.target)

        def made_up(
            view: View,
        ) -> torch.Tensor:  # one for equal views: kernels may ask whether it is the same
            if view not in known:
                known[view] = self._made_up(view, made, number)
            return known[view]

        args = [value_of(value, made_up) for value in op.arguments]
        kwargs = {name: value_of(value, made_up) for name, value in op.keywords}
        return measure(lambda: kernel(*args, **kwargs), self.allocator, self.device)

    def _made_up(self, view: View, made: dict[StorageId, torch.UntypedStorage], number: int) -> torch.Tensor:
        if view.base == EMPTY:
            return torch.empty_strided(
                view.shape, view.strides, dtype=dtype_of(view.dtype), device=self.device
            )
        storage = self.graph.storages[view.base]
        if storage.kind is Kind.RANDOM_STATE:
            return saved_state(self.device)
        if view.base in self.given:
            return tensor_in(self.given[view.base], view)
        if view.base not in made:
            dtype = dtype_of(view.dtype)
            size = max(storage.bytes, view.end)
            made[view.base] = torch.UntypedStorage(size, device=self.device)  # type: ignore[no-untyped-call]
            whole = torch.empty(0, dtype=dtype, device=self.device).set_(
                made[view.base], 0, (size // dtype.itemsize,), (1,)
            )
            fraction = dtype.is_floating_point or dtype.is_complex
            whole.fill_(0.5 if fraction else number or dtype is torch.bool)
        return tensor_in(made[view.base], view)


_WIDENED = {("bfloat16", "float32"), ("float16", "float32")}


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


def _given(graph: Graph, given: Sequence[Any], device: torch.device) -> dict[StorageId, torch.UntypedStorage]:
    """The caller's memory by storage, where it looks as captured."""
    found: dict[StorageId, torch.UntypedStorage] = {}
    inputs = graph.parts[0].inputs if graph.parts else ()
    for item, tensor in zip(inputs, given, strict=False):
        view = item.view
        if view is None or view.base == EMPTY or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            continue
        storage = tensor.untyped_storage()
        alike = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()) == (
            view.shape, view.strides, view.offset,
        )  # fmt: skip
        if alike and tensor.device == device and storage.nbytes() == graph.storages[view.base].bytes:
            found[view.base] = storage
    return found


def _allocations(op: Op, price: Measured) -> tuple[Allocation, ...]:
    """Map results to storages."""
    named = {max(result.position, 0): result.view.base for result in op.results}
    found = tuple(
        Allocation(size, named.get(result, -1), start, end) for size, result, start, end in price.allocations
    )
    if sorted(item.storage for item in found if item.storage >= 0) != sorted(op.creates):
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


def _key(graph: Graph, op: Op) -> str:
    """Name the op with everything that its time and work space depend on."""
    order: dict[StorageId, int] = {}

    def text(value: Argument) -> str:
        if isinstance(value, View):
            group = order.setdefault(value.base, len(order))
            size = 0 if value.base == EMPTY else graph.storages[value.base].bytes
            shape = f"{value.dtype}{value.shape}{value.strides}+{value.offset}{value.bits}"
            return f"{shape}@{group}:{size}"
        if isinstance(value, Items):
            return "[" + ",".join(text(item) for item in value.items) + "]"
        return getattr(value, "text", None) or repr(value)

    keywords = ",".join(f"{name}={text(value)}" for name, value in sorted(op.keywords, key=lambda k: k[0]))
    return f"{op.target}({','.join(text(value) for value in op.arguments)};{keywords})"


def _corrected(graph: Graph, ops: Sequence[Op]) -> tuple[Storage, ...]:
    """Storages with the sizes that were really allocated, never less than a view of them needs."""
    real = {item.storage: item.bytes for op in ops for item in op.allocations if item.storage >= 0}
    for op in ops:
        for result in op.results if not op.allocations else ():
            real[result.view.base] = max(graph.storages[result.view.base].bytes, result.view.end)
    return tuple(replace(storage, bytes=real.get(storage.id, storage.bytes)) for storage in graph.storages)
