"""Captured graphs of one model: measured, and measured again where they allocate otherwise."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec
import torch

from tightrope.capture import measured
from tightrope.capture.dynamo import environment
from tightrope.capture.program import Program
from tightrope.core import Bytes, Graph, Kind, Storage, StorageId
from tightrope.core.values import EMPTY
from tightrope.lower import without_writes
from tightrope.lower.remainder import can_go
from tightrope.native.hook.allocator import Allocator
from tightrope.plan import solve
from tightrope.price.store import FreshPrices, PriceStore
from tightrope.run.base.status import StatusLine
from tightrope.run.ledger.headroom import Headroom

_Picker: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
_LASTING = (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT)
_SCALAR: Bytes = 64


def _unchanged(program: Program) -> Program:
    return program


def _then_without_writes(finish: Callable[[Program], Program]) -> Callable[[Program], Program]:
    def finished(program: Program) -> Program:
        done = finish(program)
        return replace(done, graph=without_writes(done.graph))

    return finished


@dataclass(frozen=True, eq=False)
class Rewritten:
    """What a graph is, that computes what another one does.

    Attributes:
        source: the graph that it stands for.
        num_chunks: of rows in which a stretch of it runs; 0 = none does.
        channels_last: whether its convolutions work channels-last.
        num_products: matrix products that oneDNN computes.
        equal: whether a plug-in found it, and ``most``: total bytes of its plans; 0 = up to the budget.
    """

    source: Graph
    num_chunks: int = 0
    channels_last: bool = False
    num_products: int = 0
    equal: bool = False
    most: Bytes = 0

    @property
    def said(self) -> str:
        """How it differs, in words."""
        products = f"with {self.num_products} products by oneDNN" if self.num_products else ""
        named = ("rewritten" * self.equal, "channels-last" * self.channels_last, products)
        return " and ".join(filter(None, named))


@dataclass(eq=False)
class Captured:
    """One captured graph.

    Attributes:
        raw: as captured.
        program: with prices.
        identity: storages of the caller that are the same in every call, by address.
        stale: whether it must be measured again before the next call.
        num_measured: times that it was measured.
        finish: what to do to the program once it is priced.
        why: cause of its first plan, where it is not that the graph is new.
        rewritten: what it stands for; None = it is as captured.
        plain: the program that it stands for, where that may be needed in its place.
        bucket: number of the graph for the largest sizes of its bucket, whose plan it uses; None = its own.
        strict: whether to refuse where that plan does not fit.
        nearest: number of the graph for other sizes whose plan a search begins from; None = there is none.
        lends: whether it has the largest sizes of a bucket.
        own: picks the inputs that are tensors of the model's.
        others: picks the other inputs.
    """

    raw: Program
    program: Program
    identity: dict[StorageId, Hashable]
    stale: bool = False
    num_measured: int = 1
    finish: Callable[[Program], Program] = _unchanged
    why: str = ""
    rewritten: Rewritten | None = None
    plain: Program | None = None
    bucket: int | None = None
    strict: bool = False
    nearest: int | None = None
    lends: bool = False

    def __post_init__(self) -> None:
        graph, kinds = self.graph, (Kind.PARAMETER, Kind.BUFFER)
        inputs = graph.parts[0].inputs
        inputs = inputs[: len(inputs) - len(self.program.constants)]
        bases = [EMPTY if one.view is None else one.view.base for one in inputs]
        own = [base != EMPTY and graph.storages[base].kind in kinds for base in bases]
        self.own: _Picker = _picker([number for number, mine in enumerate(own) if mine])
        self.others: _Picker = _picker([number for number, mine in enumerate(own) if not mine])

    @property
    def graph(self) -> Graph:
        """The graph with prices."""
        return self.program.graph

    @staticmethod
    def of(
        program: Program,
        real: Sequence[Any],
        allocator: Allocator | None,
        status: StatusLine,
        finish: Callable[[Program], Program] = _unchanged,
        *,
        writes: bool = True,
        check: bool = False,
    ) -> "Captured":
        """Measure a captured graph.

        Args:
            program: as captured.
            real: what it is given.
            allocator: the hook.
            status: for progress.
            finish: completes the priced program.
            writes: whether ops may write over their inputs.
            check: whether kept prices are compared with what some ops take now.

        Raises:
            InfeasibleError: an op does not fit alone under the limit that is set.
            CaptureError: an op allocates, or lays out, what its shapes do not say.
        """
        finish = finish if writes else _then_without_writes(finish)
        with status.task("measuring ops", len(program.graph.ops)) as tick:
            priced = finish(measured(program, real, allocator, check=check, tick=tick))
        identity = _identity(priced.graph, [*real, *priced.constants])
        return Captured(program, priced, identity, finish=finish)

    def measure_again(self, args: Sequence[Any], allocator: Allocator | None, status: StatusLine) -> bool:
        """Price every op anew, whatever is known of it, once; tell whether it was done."""
        self.stale = False
        if self.num_measured > 1:
            return False
        self.num_measured += 1
        graph = msgspec.structs.replace(self.raw.graph, environment=environment(args))
        self.raw = replace(self.raw, graph=graph)
        store: PriceStore = FreshPrices(graph.environment)
        with status.task("measuring ops again", len(graph.ops)) as tick:
            priced = measured(self.raw, args, allocator, store=store, tick=tick)
        self.program = self.finish(priced)
        for known in ("unplanned", "as_given", "evicted", "waiting", "staying"):
            self.__dict__.pop(known, None)
        return True

    @cached_property
    def unplanned(self) -> Bytes:
        """Bytes that a call takes without a plan, with a guess for a loss outside the model."""
        return self.as_given + self.headroom.wanted - self.headroom.tangents

    @cached_property
    def as_given(self) -> Bytes:
        """Bytes that a call makes without a plan, its gradients included."""
        forecast = solve(self.graph, budget=2**60, planner="given").forecast
        return forecast.arena + forecast.outside

    @cached_property
    def evicted(self) -> Bytes:
        """Bytes that eviction needs at once: what one op reads and makes."""
        sizes = {one.id: one.size for one in self.graph.storages if not one.external}
        own = (sum(sizes.get(one, 0) for one in {*op.reads, *op.creates}) for op in self.graph.ops)
        return max(own, default=0)

    @cached_property
    def waiting(self) -> Bytes:
        """Bytes that a forward leaves for its backward where nothing is computed again, outputs included."""
        return sum(one.size for one in self._left)

    @cached_property
    def staying(self) -> Bytes:
        """Bytes of those that cannot be computed again."""
        gone = can_go(self.graph, {one.id for one in self._left})
        return sum(one.size for one in self._left if one.id not in gone)

    @property
    def _left(self) -> list[Storage]:
        graph, end = self.graph, self.graph.parts[0].end
        made = {storage for op in graph.ops[:end] for storage in op.creates}
        read = {storage for op in graph.ops[end:] for storage in op.reads}
        return [one for one in graph.storages if one.id in made and (one.outside or one.id in read)]

    @property
    def headroom(self) -> Headroom:
        """What to leave for a loss outside the model, as long as nothing was seen."""
        return headroom_of(self.graph)


def _picker(numbers: Sequence[int]) -> _Picker:
    """Make what takes the items of these numbers from a list, in C."""
    first = numbers[0] if numbers else 0
    return itemgetter(*numbers) if len(numbers) > 1 else itemgetter(slice(first, first + len(numbers)))


def headroom_of(graph: Graph) -> Headroom:
    """What to leave for a loss outside the model of a graph, as long as nothing was seen."""
    inputs = graph.parts[1].inputs if len(graph.parts) > 1 else ()
    storages = {given.view.base for given in inputs if given.view is not None} - {EMPTY}
    sizes = [graph.storages[storage].size for storage in storages]
    handed = [one.size for one in graph.storages if one.outside and one.kind is not Kind.GRADIENT]
    outputs = sum(size for size in handed if size > _SCALAR)
    return Headroom(sum(size for size in sizes if size > _SCALAR), sum(sizes), outputs=outputs)


def _identity(graph: Graph, given: Sequence[Any]) -> dict[StorageId, Hashable]:
    found: dict[StorageId, Hashable] = {}
    for item, tensor in zip(graph.parts[0].inputs, given, strict=False):
        if item.view is None or item.view.base == EMPTY or not isinstance(tensor, torch.Tensor):
            continue
        if graph.storages[item.view.base].kind in _LASTING:
            found[item.view.base] = tensor.untyped_storage().data_ptr()
    return found
