"""Which values are wanted narrow, which wide, and which share one unit.

x ---- conv ---- relu ----+---- conv (narrow)           wide: read by a sum or a layer norm, or returned
  16 bits to the sum      +---- add  (wide)             narrow: read by everything else, or thin
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tightrope.core import Graph, Op, OpId, StorageId, View
from tightrope.core.values import EMPTY

NARROW, WIDE = "int8", "int16"
_SUMS = ("micro.add", "micro.add_rows")
_COPIES = ("micro.cat", "micro.gather", "micro.relu")
_CLAMPED = ("micro.conv2d", "micro.linear", "micro.conv2d_add", "micro.linear_add", *_SUMS)


@dataclass(frozen=True)
class Demands:
    """What every value of a float graph is needed as.

    Attributes:
        wanted: storage -> formats.
        rectified: result of a ReLU that is a clamp of what comes before it -> that.
        shared: format -> storage -> those that share its unit.
        returned: format of the result.
        tops: what is rectified -> the number above which it is clamped too.
        thin: values that sums read in 8 bits.
    """

    wanted: Mapping[StorageId, frozenset[str]]
    rectified: Mapping[StorageId, StorageId]
    shared: Mapping[str, Mapping[StorageId, frozenset[StorageId]]]
    returned: str = WIDE
    tops: Mapping[StorageId, float] = field(default_factory=dict)
    thin: frozenset[StorageId] = frozenset()

    def root(self, storage: StorageId) -> StorageId:
        """The value that stands for a storage: what is rectified by its clamp."""
        return self.rectified.get(storage, storage)

    def group(self, storage: StorageId, dtype: str) -> frozenset[StorageId]:
        """All that share the unit of a storage in a format, itself among them."""
        return self.shared[dtype].get(self.root(storage), frozenset((self.root(storage),)))

    def adds_narrow(self, op: Op) -> bool:
        """Whether an op adds values of 8 bits."""
        return _adds(op, lambda storage: self.root(storage) in self.thin)


def demands_of(graph: Graph, returned: str = WIDE, thin: frozenset[StorageId] = frozenset()) -> Demands:
    """Find them, from the last op back to the first.

    Args:
        graph: in float.
        returned: format of the result.
        thin: values that sums read in 8 bits.
    """
    rectified = _rectified(graph)

    def root(storage: StorageId) -> StorageId:
        return rectified.get(storage, storage)

    wanted: dict[StorageId, set[str]] = {}
    for value in graph.parts[0].outputs:
        if isinstance(value, View):
            wanted.setdefault(root(value.base), set()).add(returned)
    for op in reversed(graph.ops):
        if op.creates and op.creates[0] in rectified:
            continue
        narrow = _adds(op, lambda storage: root(storage) in thin)
        for at, storage in _read(op):
            wanted.setdefault(root(storage), set()).update((NARROW,) if narrow else _formats(op, at, wanted))
    shared: dict[str, dict[StorageId, frozenset[StorageId]]] = {NARROW: {}, WIDE: {}}
    for dtype, groups in shared.items():
        for op in graph.ops:
            _join(groups, [root(s) for s in _alike(op, dtype)])
    makers = {storage: op for op in graph.ops for storage in op.creates}
    tops = {before: _top(makers[after]) for after, before in rectified.items()}
    formats = {s: frozenset(found) for s, found in wanted.items()}
    return Demands(formats, rectified, shared, returned, tops, thin)


def candidates(graph: Graph, returned: str = WIDE) -> tuple[StorageId, ...]:
    """Values that sums read and nothing else wants wide, the largest first."""
    rectified = _rectified(graph)
    sums = [op for op in graph.ops if _adds(op, lambda storage: storage != EMPTY)]
    every = frozenset(rectified.get(v.base, v.base) for op in sums for v in _summands(op))
    wanted = demands_of(graph, returned, every).wanted
    found = [s for s in every if WIDE not in wanted.get(s, ())]
    return tuple(sorted(found, key=lambda s: (-graph.storages[s].bytes, s)))


def _summands(op: Op) -> list[View]:
    """What a sum adds that is not computed inside it."""
    values = op.arguments[:1] if op.target.endswith("_add") else op.arguments
    return [value for value in values if isinstance(value, View)]


def _adds(op: Op, fits: Callable[[StorageId], bool]) -> bool:
    """Whether an op is a sum of values that are alike, all of which fit."""
    adds = op.target == "micro.add" or op.target.endswith("_add")
    return adds and all(fits(value.base) for value in _summands(op))


def _rectified(graph: Graph) -> dict[StorageId, StorageId]:
    makers = {storage: op for op in graph.ops for storage in op.creates}
    readers: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for storage in op.reads:
            readers.setdefault(storage, []).append(op.id)
    found = {}
    for op in graph.ops:
        if _rectifies(op) and readers[op.reads[0]] == [op.id]:
            maker = makers.get(op.reads[0])
            if maker is not None and maker.target in _CLAMPED:
                found[op.creates[0]] = op.reads[0]
    return found


def _rectifies(op: Op) -> bool:
    """Whether an op is a ReLU, or one with a number above which it clamps too."""
    clamp = op.target == "micro.curve" and op.arguments[1:3] == ("clamp", 0.0) and _top(op) > 0
    return op.target == "micro.relu" or clamp


def _top(op: Op) -> float:
    value = op.arguments[3] if op.target == "micro.curve" else math.inf
    assert isinstance(value, float)
    return value


def _read(op: Op) -> list[tuple[int, StorageId]]:
    values = enumerate(op.arguments)
    return [(at, v.base) for at, v in values if isinstance(v, View) and v.base != EMPTY]


def _formats(op: Op, at: int, wanted: Mapping[StorageId, set[str]]) -> set[str]:
    if op.target in _SUMS or (op.target.endswith("_add") and at == 0):
        return {WIDE}
    if op.target in ("micro.layer_norm", "micro.row_stats"):
        return {WIDE} if at == 0 else set()
    if op.target in _COPIES:
        formats = wanted.get(op.creates[0], {NARROW})
        return {WIDE} if op.target == "micro.relu" and WIDE in formats else set(formats)
    return {NARROW}


def _alike(op: Op, dtype: str) -> list[StorageId]:
    """Storages of an op that share their unit."""
    read, made = _read(op), op.creates[:1]
    if op.target in _COPIES or (dtype == WIDE and op.target in _SUMS):
        return [*made, *(storage for _, storage in read)]
    if dtype == WIDE and op.target.endswith("_add"):
        return [*made, read[0][1]]
    if dtype == NARROW and op.target == "micro.max_pool2d_only":
        return [*made, read[0][1]]
    return []


def _join(groups: dict[StorageId, frozenset[StorageId]], members: list[StorageId]) -> None:
    joined = frozenset().union(*(groups.get(one, frozenset((one,))) for one in members))
    if len(joined) > 1:
        groups.update(dict.fromkeys(joined, joined))
