"""What torch's caching allocator keeps on a rank where torch's own engines run a plan.

Idea        Reports of training runs say what the allocator has taken from the device, which is more than what
            is held. So two steps of a rank are played, allocation by allocation, in `pool.Pool`: layers in
            the order of the plan, forwards again, buffers of messages, whole gradients, and their copies.
Source      Torch's CUDACachingAllocator; ``torch/distributed/fsdp/_fully_shard``: gathered parameters have
            buffers on a stream of their own, whose segments no other stream uses; gradients are copied
            before they are reduced, and the copy waits for the next one; the root, all outside of the
            layers, stays whole (`_lazy_init`). ``torch/distributed/pipelining/stage.py``: a buffer per
            message that is received; what is sent stays until the step ends. torchtitan's ``metrics.py``.
Guarantee   None of its numbers is fitted. Where a layer's backward cannot be told from shapes, there is no
            figure.
Complexity  Allocations of two steps.
Gaps        CUDA's context and NCCL's own buffers are not torch's, and are left out. So are the work space of
            kernels, temporaries of the update, and halves of divided backwards. Tensors of a divided layer
            are taken to be divided, all but gathered rows. Rows on their way to experts are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core.units import Bytes
from tightrope_ranks.pipeline.emit import emitted, orders_of
from tightrope_ranks.pipeline.inside import computed_again
from tightrope_ranks.pipeline.language import Action
from tightrope_ranks.pipeline.layouts import LayoutSearch
from tightrope_ranks.pipeline.pool import LayerRun, Pool
from tightrope_ranks.pipeline.rank_layout import RankLayout
from tightrope_ranks.pipeline.segments import is_layer
from tightrope_ranks.pipeline.starts import bare
from tightrope_ranks.values.ranks import JointPlan

STEPS = 2
"""Steps that are played: the second one finds the holes of the first."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer on one rank; sizes are those of its part.

    Attributes:
        run: of the whole layer.
        ways: ranks that divide what it computes.
        tensor: of them, those that divide its parameters.
        again: whether its forward runs again before its backward.
        rows: bytes of gathered rows, per part that gathers.
        parameters: bytes that it computes with.
        summed: bytes of its gradients while they are added up; 0 = not told apart.
        root: whether it lies outside of the list of layers.
    """

    run: LayerRun
    ways: int
    tensor: int
    again: bool
    rows: tuple[Bytes, ...]
    parameters: Bytes
    summed: Bytes
    root: bool

    def size(self, number: int, size: Bytes) -> Bytes:
        """Tell the part of a tensor that is here."""
        return -(-size // (self.tensor if number in self.run.gradients else self.ways))


def reserved(search: LayoutSearch, layout: RankLayout, plan: JointPlan) -> Bytes:
    """Tell the most bytes that torch's allocator keeps on the first rank, the last one, and the fullest.

    Args:
        search: that found the layout.
        layout: how ranks are divided.
        plan: of it.

    Returns:
        Bytes; 0 where a layer has no figure, or where stages are computed again, which torch cannot.
    """
    layers = _layers(search, layout, sharded=plan.work.sharded)
    peaks = [rank.peak for rank in plan.ranks]
    if not layers or any(emitted(plan.work, rank).again for rank in plan.ranks):
        return 0
    work, cuts, rows = plan.work, search.cuts(layout, plan), bare(orders_of(plan))
    found = 0
    for rank in {0, len(peaks) - 1, peaks.index(max(peaks))}:
        mine = {stage: layers[cuts[stage] : cuts[stage + 1]] for stage in work.local(rank)}
        kept, held = [one for stage in mine.values() for one in stage], work.held(rank)
        if layout.by_layer or work.sharded:
            whole = [one for one in kept if one.root or work.sharded]
            held += _buffers(kept) + sum(one.parameters for one in whole)
        far = {
            stage for stage in range(1, len(work.owners)) if len({*work.owners[stage - 1 : stage + 1]}) > 1
        }
        played = _RankSteps(mine, far, work.num_micro_batches, layout.by_layer)
        for _ in range(STEPS):
            played.step(_shortened(rows[rank]))
        found = max(found, held + played.pool.reserved)
    return found


def _layers(search: LayoutSearch, layout: RankLayout, *, sharded: bool) -> list[_Layer]:
    """Describe the layers on a rank; none where one of them has not been run."""
    cut, *_ = search.on_a_rank(layout)
    costs = computed_again(cut.costs, layout.again) if layout.again else cut.costs
    layers = []
    for name, whole, cost, of in zip(cut.names, cut.costs, costs, cut.inside, strict=True):
        if of.run is None:
            return []
        rows = ((cost.output or cost.input) * layout.tensor,) * of.num_parts if layout.tensor > 1 else ()
        summed = whole.whole_gradients if layout.by_layer or sharded else 0
        ways, again = layout.tensor * layout.context, cost.saved < whole.saved
        root = not is_layer(name)
        layers.append(_Layer(of.run, ways, layout.tensor, again, rows, whole.parameters, summed, root))
    return layers


def _shortened(row: Sequence[Action]) -> Sequence[Action]:
    """Leave out micro-batches that come when as many are alive as ever.

    >>> one = [Action(0, kind, micro) for micro in range(9) for kind in "FB"]
    >>> len(_shortened(one))
    4
    """

    def depth(some: Sequence[Action]) -> int:
        alive = most = 0
        for action in some:
            alive += {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
            most = max(most, alive)
        return most

    count, many = 2, max(action.micro_batch for action in row) + 1
    while count < many:
        few = [action for action in row if action.micro_batch < count]
        if depth(few) == depth(row):
            return few
        count *= 2
    return row


def _buffers(layers: Sequence[_Layer]) -> Bytes:
    """Tell the buffers for gathering parameters of two groups that follow each other."""
    groups = sorted((one.parameters for one in layers if not one.root), reverse=True)
    first = sum(one.parameters for one in layers if one.root)
    return max(sum(groups[:2]), first + sum(groups[:1]))


class _RankSteps:
    """Steps of a rank, allocation by allocation."""

    def __init__(
        self, stages: dict[int, list[_Layer]], far: set[int], num_micro: int, by_layer: bool
    ) -> None:
        self.pool = Pool()
        self.stages, self.num_micro, self.by_layer = stages, num_micro, by_layer
        self.far = far  # stages whose input comes from another rank
        self.live: dict[tuple[int, int, int, int], int] = {}  # stage, layer, micro-batch and number: address
        self.handed = -1  # address of a gradient on its way to the layer before; -1 = none
        self.near: dict[tuple[int, int], int] = {}  # gradients for a stage of this rank, by micro-batch
        self.kept: list[int] = []  # until the step ends
        self.sums: dict[tuple[int, int], int] = {}
        self.copy = -1  # of gradients, which the last reduction read

    def step(self, row: Sequence[Action]) -> None:
        """Play one step."""
        spare = self.num_micro - 1 - max(action.micro_batch for action in row)
        for stage, layers in self.stages.items():
            received = (layers[0], layers[0].run.outgoing * (stage in self.far))
            sent = (layers[-1], layers[-1].run.output * (stage + 1 in self.far))
            for layer, number in (received, sent):  # of the same size as what comes the other way
                size = dict(e for e in layer.run.events if e[1]).get(number, 0)
                if size:
                    many = range(self.num_micro + spare)  # those that are received, and sent by nobody here
                    self.kept += [self.pool.allocate(layer.size(number, size)) for _ in many]
        for stage, kind, micro in row:
            if kind == "F":
                for place, layer in enumerate(self.stages[stage]):
                    self._forward(layer, (stage, place, micro))
            elif kind in "BI":
                near = stage + 1 in self.stages and stage + 1 not in self.far
                self.handed = self.near.pop((stage, micro), -1) if near else -1
                for place, layer in reversed([*enumerate(self.stages[stage])]):
                    self._backward(layer, (stage, place, micro))
                if self.handed >= 0 and stage - 1 in self.stages and stage not in self.far:
                    self.near[stage - 1, micro] = self.handed
                elif self.handed >= 0:
                    self.kept.append(self.handed)
        for key in sorted(self.sums, reverse=True):  # whole gradients are reduced when all are there
            self._reduce(self.stages[key[0]][key[1]].summed)
            self.pool.free(self.sums.pop(key))
        self._drop()
        self._free([*self.kept, *self.live.values(), *self.near.values()])  # frozen layers have no backward
        self.kept, self.live, self.near = [], {}, {}

    def _forward(self, layer: _Layer, key: tuple[int, int, int]) -> None:
        gathered = self._gathered(layer, layer.again)
        self._play(layer, layer.run.events[: layer.run.forward], key)
        if not layer.again:
            for number, at in enumerate(self._rows(layer), 1):
                self.live[*key, -number] = at
        self._free(gathered)
        if layer.again:
            self._forget(key, but=layer.run.output)

    def _backward(self, layer: _Layer, key: tuple[int, int, int]) -> None:
        run, gathered = layer.run, self._gathered(layer, layer.again)
        first = self.live.pop((*key, run.output), -1) if layer.again else -1
        if layer.again:
            self._play(layer, run.events[: run.forward], key)
        if run.incoming and self.handed >= 0:
            self.live[*key, run.incoming] = self.handed
            self.handed = -1
        gradient = [self.pool.allocate(size) for size in layer.rows[:1]]  # of gathered rows, before their sum
        sent = key[1] + 1 == len(self.stages[key[0]]) and key[0] + 1 in self.far
        events = [one for one in run.events[run.forward :] if not sent or one[0] != run.incoming]
        self._play(layer, events, key)  # a gradient that is received has its buffer
        self._free(gradient)
        made = self.live.pop((*key, run.output), -1)
        for at in {first, made} - {-1}:
            self.kept.append(at) if sent and at == (first if layer.again else made) else self.pool.free(at)
        if layer.summed and not self.by_layer and key[:2] not in self.sums:
            self.sums[key[:2]] = self.pool.allocate(layer.summed)
        self._free([self.handed] if self.handed >= 0 else [])
        self.handed = self.live.pop((*key, run.outgoing), -1)
        if layer.summed and self.by_layer:
            self._reduce(layer.summed)
        self._forget(key, but=-1 << 30)
        self._free(gathered)

    def _gathered(self, layer: _Layer, again: bool) -> list[int]:
        """Allocate what a layer computes with, for as long as it runs: parameters, and rows."""
        found = [self.pool.allocate(layer.parameters)] if self.by_layer and not layer.root else []
        return found + (self._rows(layer) if again else [])

    def _rows(self, layer: _Layer) -> list[int]:
        return [self.pool.allocate(size) for size in layer.rows]

    def _play(self, layer: _Layer, events: Sequence[tuple[int, Bytes]], key: tuple[int, int, int]) -> None:
        for number, size in events:
            if not size:
                if (*key, number) in self.live:
                    self.pool.free(self.live.pop((*key, number)))
            elif (*key, number) not in self.live:  # the gradient that the next layer made
                self.live[*key, number] = self.pool.allocate(layer.size(number, size))

    def _reduce(self, size: Bytes) -> None:
        """Copy gradients, and let go of the copy before."""
        at = self.pool.allocate(size)
        self._drop()
        self.copy = at

    def _drop(self) -> None:
        if self.copy >= 0:
            self.pool.free(self.copy)
            self.copy = -1

    def _forget(self, key: tuple[int, int, int], *, but: int) -> None:
        for one in [one for one in self.live if one[:3] == key and one[3] != but]:
            self.pool.free(self.live.pop(one))

    def _free(self, some: Sequence[int]) -> None:
        for at in some:
            self.pool.free(at)
