"""Derive a lower bound on the time of recomputation again, from multipliers, without a solver.

Idea        While base op t runs for the first time, what it reads and allocates is live. A storage that
            was made before and is used later is live too, or absent; if absent, it was made again
            between its uses before and after t. So absent storages have at least as many bytes as the
            rest takes more than the budget (a row), and each costs a run of its producer. Weights on
            rows bound that cost from below: every absence costs what it charges, less what its weights
            give back, and an absence that costs less than nothing is taken for free.
Source      weak duality of covering problems; rounded rows are mixed-integer rounding cuts
Guarantee   Holds for every schedule without paging that `replay_schedule` accepts within the budget,
            whatever the weights are. All arithmetic is on integers.
Complexity  O(nodes of the tree * rows used * gaps).
Gaps        Runs are charged for the storages that they make again, never for what they need themselves.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn, TypeAlias

from tightrope.core import Bytes, Case, Cover, Graph, JudgeError, Nanoseconds, Op, OpId, StorageId
from tightrope.judge.needs import inside
from tightrope.judge.versions import base_versions, runs_once

GapId: TypeAlias = tuple[StorageId, OpId]
_ANY: OpId = -1


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch between two uses of a storage that can be made again.

    Attributes:
        size: bytes of the storage.
        price: least time of a run that makes it.
        since: the new run comes after the first run of this op ...
        until: ... and before that of this one.
        inside: with a free order, the ops that certainly lie between, as bits.
    """

    size: Bytes
    price: Nanoseconds
    since: OpId
    until: OpId
    inside: int | None = None

    def around(self, op: OpId) -> bool:
        """Tell whether the storage is live or absent, and unused, during the first run of ``op``."""
        if self.inside is not None:
            return bool(self.inside >> op & 1)
        return self.since < op < self.until


def extra_time(graph: Graph, cover: Cover, *, free_order: bool = False) -> Nanoseconds:
    """Derive the time that a cover proves every schedule within its budget to add.

    Args:
        graph: well formed.
        cover: any.
        free_order: prove it for every order of first runs in which each op follows what it reads.

    Raises:
        JudgeError: the cover names what the graph does not have, charges more than a run costs, leaves a
            case open, or has a negative number.
    """
    if cover.scale < 1:
        _fail(f"the scale {cover.scale}, which is less than 1")
    needs = Needs(graph, cover.budget, free_order=free_order)
    unit = rerun_unit(graph) * cover.scale
    least = min(_case_value(needs, case, fixed, cover.scale) for case, fixed in _cases(cover, needs))
    return max(0, -(-least // unit)) * (unit // cover.scale)


def certain_bytes(graph: Graph) -> tuple[Bytes, ...]:
    """List, for every op, the total bytes that are live during its first run in any order."""
    return tuple(Needs(graph, 0, free_order=True).fixed)


def _cases(cover: Cover, needs: "Needs") -> Iterator[tuple[Case, dict[GapId, bool]]]:
    """Walk the tree: every case with what it assumes (True = the storage is absent in the gap)."""
    waiting: list[dict[GapId, bool]] = [{}]
    for node in cover.tree:
        if not waiting:
            _fail("more cases than its splits open")
        fixed = waiting.pop()
        if isinstance(node, Case):
            yield node, fixed
            continue
        gap = (node.storage, node.until)
        if gap not in needs.gaps or gap in fixed:
            _fail(f"storage {gap[0]} until op {gap[1]} is split, which is no open gap")
        waiting += [fixed | {gap: True}, fixed | {gap: False}]
    if waiting:
        _fail(f"{len(waiting)} cases are left open")


def _case_value(needs: "Needs", case: Case, fixed: Mapping[GapId, bool], scale: int) -> int:
    """Evaluate one case, in multiples of 1 / scale ns."""
    charge = needs.charges(case, scale)
    touched: set[GapId] = set()
    value = 0
    for op, divisor, weight in case.weights:
        if not 0 <= op < len(needs.fixed):
            _fail(f"a row of op {op}, which the graph does not have")
        if divisor < 0 or weight < 0:
            _fail(f"a negative number in the row of op {op}: divisor {divisor}, weight {weight}")
        short, sizes = needs.row(op, fixed)
        if short <= 0:
            continue
        rest = short % divisor if divisor else 0
        value += weight * (-(-short // divisor) * rest if rest else short)
        for gap, size in sizes:
            clipped = min(size, short)
            rounded = clipped // divisor * rest + min(clipped % divisor, rest) if rest else clipped
            charge[gap] -= weight * rounded
            touched.add(gap)
    value += sum(min(0, charge[gap]) for gap in touched)
    return value + sum(charge[gap] for gap, absent in fixed.items() if absent)


class Needs:
    """What every schedule of a graph holds, and what may be absent, during every first run.

    Attributes:
        gaps: every gap of a storage that can be made again.
        fixed: for every op, total bytes that are live for certain during its first run.
    """

    def __init__(self, graph: Graph, budget: Bytes, *, free_order: bool) -> None:
        self.graph, self.budget = graph, budget
        self.gaps: dict[GapId, Gap] = {}
        self._change = [0] * (len(graph.ops) + 1)
        if free_order:
            self._any_order(_ancestors(graph))
        else:
            self._base_order()
        self.fixed = [
            graph.persistent + pinned + inside(graph, op).need + sum(self._size(s) for s in op.reads)
            for op, pinned in zip(graph.ops, accumulate(self._change), strict=False)
        ]
        self._maker = {storage: op for op in graph.ops for storage in op.creates}
        self._made_by: dict[OpId, list[GapId]] = {}
        for name in self.gaps:
            self._made_by.setdefault(self._maker[name[0]].id, []).append(name)
        self._rows: dict[OpId, tuple[GapId, ...]] = {}

    def row(self, op: OpId, fixed: Mapping[GapId, bool]) -> tuple[Bytes, list[tuple[GapId, Bytes]]]:
        """Find the bytes that must be absent at an op, and the undecided gaps that may provide them."""
        if op not in self._rows:
            self._rows[op] = tuple(name for name, gap in self.gaps.items() if gap.around(op))
        short, sizes = self.fixed[op] - self.budget, []
        for name in self._rows[op]:
            absent, size = fixed.get(name), self.gaps[name].size
            short += 0 if absent else size
            if absent is None:
                sizes.append((name, size))
        return short, sizes

    def charges(self, case: Case, scale: int) -> dict[GapId, int]:
        """List what each gap charges; those of one producer may not charge a run twice."""
        charge = {name: 0 if self._several(name) else gap.price * scale for name, gap in self.gaps.items()}
        for storage, until, share in case.shares:
            name = (storage, until)
            if share < 0:  # it would let another gap of the same run charge more than the run costs
                _fail(f"a negative share {share} for storage {storage} until op {until}")
            if name not in charge or not self._several(name):
                _fail(f"a share for storage {storage} until op {until}, which needs none")
            charge[name] = share
        for op in {self._maker[storage].id for storage, _, _ in case.shares}:
            self._check_shares(self.graph.ops[op], charge, scale)
        return charge

    def _several(self, name: GapId) -> bool:
        """Tell whether a run that fills the gap may make other storages too."""
        return any(len(run.creates) > 1 for run in reruns(self.graph, self._maker[name[0]]))

    def _check_shares(self, op: Op, charge: Mapping[GapId, int], scale: int) -> None:
        for run in reruns(self.graph, op):
            mine = [name for name in self._made_by[op.id] if name[0] in run.creates]
            for name in mine:
                start = self.gaps[name].since
                claimed = sum(charge[o] for o in mine if self.gaps[o].since <= start < self.gaps[o].until)
                if claimed > run.ns * scale:
                    _fail(f"the gaps of op {op.id} charge more than a run of it costs")

    def _base_order(self) -> None:
        versions = base_versions(self.graph).reads
        for storage, maker, uses in uses_of(self.graph):
            price = _price(self.graph, maker, storage)
            resident = self.graph.storages[storage].resident_at_end
            for since, until in zip([maker.id, *uses], [*uses, len(self.graph.ops)], strict=True):
                if until == len(self.graph.ops) and not resident:
                    break
                if resident or price is None or versions[until].get(storage, 0) > 0:
                    self._pin(storage, since + 1, until)
                elif until > since + 1:
                    self.gaps[storage, until] = Gap(self._size(storage), price, since, until)

    def _any_order(self, ancestors: list[int]) -> None:
        changed = {storage for op in self.graph.ops for storage in op.mutates}
        for storage, maker, _ in uses_of(self.graph):
            price = _price(self.graph, maker, storage)
            readers = {op.id for op in self.graph.ops if storage in op.reads}
            after = sum(1 << t for t, b in enumerate(ancestors) if b >> maker.id & 1 and t not in readers)
            before = 0
            for reader in readers:
                before |= ancestors[reader]
            between = after & (-1 if self.graph.storages[storage].resident_at_end else before)
            if price is None or self.graph.storages[storage].resident_at_end:
                for op in _members(between):
                    self._pin(storage, op, op + 1)
            elif storage not in changed and between:
                size, end = self._size(storage), len(self.graph.ops)
                self.gaps[storage, _ANY] = Gap(size, price, maker.id, end, between)

    def _pin(self, storage: StorageId, first: OpId, end: OpId) -> None:
        self._change[first] += self._size(storage)
        self._change[end] -= self._size(storage)

    def _size(self, storage: StorageId) -> Bytes:
        made = self.graph.storages[storage]
        return 0 if made.external else made.size


def uses_of(graph: Graph) -> Iterator[tuple[StorageId, Op, list[OpId]]]:
    """List every storage that an op makes, the op, and the later ops during which it is live for certain."""
    uses: dict[StorageId, list[OpId]] = {s: [] for op in graph.ops for s in op.creates}
    for op in graph.ops:
        for storage in op.reads:
            if storage in uses:
                uses[storage].append(op.id)
    for op in graph.ops:
        for storage in op.creates:
            if graph.storages[storage].outside and (after := graph.handover(op.id)) < len(graph.ops):
                uses[storage] = sorted({*uses[storage], after})
            yield storage, op, uses[storage]


def _ancestors(graph: Graph) -> list[int]:
    """For every op, the ops that come before it in any order, as bits."""
    maker = {storage: op.id for op in graph.ops for storage in op.creates}
    before: list[int] = []
    for op in graph.ops:
        mine = 0
        for storage in op.reads:
            if storage in maker:
                mine |= before[maker[storage]] | 1 << maker[storage]
        before.append(mine)
    return before


def _members(bits: int) -> Iterator[int]:
    for position in range(bits.bit_length()):
        if bits >> position & 1:
            yield position


def reruns(graph: Graph, op: Op) -> list[Op]:
    """List what may run to make again what a base op made."""
    return [op] * (not runs_once(op)) + ([graph.op(op.variant)] if op.variant >= 0 else [])


def _price(graph: Graph, op: Op, storage: StorageId) -> Nanoseconds | None:
    if op.variant < 0:
        return None if runs_once(op) else op.ns
    return min((run.ns for run in reruns(graph, op) if storage in run.creates), default=None)


def rerun_unit(graph: Graph) -> Nanoseconds:
    """Find the largest time of which every added time is a multiple."""
    return math.gcd(*(run.ns for op in graph.ops for run in reruns(graph, op))) or 1


def _fail(what: str) -> NoReturn:
    raise JudgeError(f"certificate: the cover has {what}.")
