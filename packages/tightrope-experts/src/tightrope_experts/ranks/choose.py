"""Which degree, how many parts and how many levels a load is sent with, under bytes and time of a rank.

Idea        Each way is priced by its busiest rank: exchanges by links, products by operations; two
            neighbouring rounds overlap. Loads alike share an answer: a bucket is a load's rows and
            imbalance, in steps of a tenth.
Guarantee   An answer is within the bytes for every load. Within a bucket, it is the way with the smallest
            price for the load that opened it.
Complexity  One `Traffic` a way and bucket.
Gaps        Prices are of the model: links are full duplex and do not disturb each other.
Source      Tutel (MLSys 2023), which measures by capacity instead
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from tightrope.core import Bytes, DeviceLink, InfeasibleError
from tightrope_experts.layout import Counts, Sending, Traffic
from tightrope_experts.ranks.layer import SENDING
from tightrope_experts.sizes import ExpertSizes

PARTS: Final = (1, 2, 4, 8)
_BUCKET: Final = 10
_INDICES: Final = 6  # whole numbers of 8 bytes that go with a row
_BACK: Final = 2  # products of a backward, in those of a forward


@dataclass(frozen=True, slots=True)
class Speeds:
    """A cluster of equal ranks."""

    flops: float  # operations per second of a rank
    between: DeviceLink  # of nodes
    inside: DeviceLink  # a node
    node: int = 1  # ranks of a node

    def exchange(self, matrix: Counts, size: Bytes, *, levels: int = 1) -> float:
        """Return the seconds of an exchange of rows of ``size`` bytes: (from, to) rows of all ranks."""
        nodes, node = np.arange(len(matrix)) // self.node, self.node
        if levels == 1:
            near = np.where(nodes[:, None] == nodes, matrix, 0)
            return self._took(self.between, matrix - near, size) + self._took(self.inside, near, size)
        cube = matrix.reshape(-1, node, len(matrix) // node, node)  # node and place of both ends
        within = max(self._took(self.inside, one, size) for one in cube.sum(2))
        return within + max(self._took(self.between, one, size) for one in np.moveaxis(cube.sum(1), 2, 0))

    def _took(self, link: DeviceLink, rows: Counts, size: Bytes) -> float:
        rows = np.where(np.eye(len(rows), dtype=bool), 0, rows)
        messages = max(int((rows > 0).sum(axis).max(initial=0)) for axis in (0, 1))
        busiest = max(int(rows.sum(axis).max(initial=0)) for axis in (0, 1))
        return messages * link.latency + busiest * size / link.bandwidth


@dataclass(frozen=True, slots=True)
class WayPrice:
    """What a way costs for a load."""

    sending: Sending
    levels: int  # of exchanges
    seconds: float  # of the layer's forward and backward
    held: Bytes  # bound of the busiest rank, above its parameters and what it is given


def price_of(sending: Sending, levels: int, counts: Counts, sizes: ExpertSizes, speeds: Speeds) -> WayPrice:
    """Price one way for a load: (W, E) rows of each rank by expert."""
    traffic = Traffic(sizes.layout, counts, sending)
    degree, dim, wide, hidden = max(sending.degree, 1), sizes.dim, sizes.wide, sizes.hidden
    share = 2 * dim * (wide + hidden) / degree / speeds.flops
    there, back, twice = (
        [speeds.exchange(one, dim * sizes.itemsize, levels=levels) for one in matrices]
        for matrices in (traffic.matrices, traffic.matrices.swapaxes(1, 2), traffic.again)
    )
    work, more = (share * every.sum(1).max(1) for every in (traffic.matrices, traffic.again))
    forward = _pipelined(there, work, back)
    backward = _pipelined(np.add(there, twice), _BACK * work + more / 2, back)
    num, own = sizes.layout.sharing(sending.degree), sizes.weights
    at = np.arange(sizes.ranks) // num
    gathered = speeds.exchange((at[:, None] == at).astype(np.int64), own)
    # gathered weights are sent, received and laid out; rows arrive while others are multiplied and leave
    arrive = traffic.matrices.sum(1)
    kept, flying = int((arrive * traffic.kept).sum(0).max()), int(arrive.max())
    numbers = kept * (dim + wide // degree) + flying * (8 * dim + (4 * wide + 8 * hidden) // degree)
    numbers += (6 * int(traffic.matrices.sum(2).max()) + 2 * sizes.tokens) * dim
    held = (2 if num == 1 else 5 * num) * own + numbers * sizes.itemsize
    held += 8 * _INDICES * (sizes.tokens * sizes.k + flying)
    return WayPrice(sending, levels, 3 * gathered + forward + backward, held)


def _pipelined(there: Iterable[float], work: Iterable[float], back: Iterable[float]) -> float:
    """Return when the last of several rounds is back: one link each way, products in order."""
    sent = worked = returned = 0.0
    for a, b, c in zip(there, work, back, strict=True):
        sent += a
        worked = max(sent, worked) + b
        returned = max(worked, returned) + c
    return returned


@dataclass
class Chooser:
    """Choose how a load travels, once for loads alike; state of the runtime, equal on all ranks."""

    sizes: ExpertSizes  # of the layer
    speeds: Speeds  # of the cluster
    limit: Bytes  # of a rank, above its parameters
    sending: Sending = SENDING  # its limits of rows hold for every way
    levels: Sequence[int] = (1,)  # that exchanges may have; a layer has the one that it was made with

    def __post_init__(self) -> None:
        self._every = [
            (replace(self.sending, degree=degree, parts=parts), level)
            for degree, parts, level in product(self.sizes.layout.degrees, PARTS, self.levels)
            if degree or (parts, level) == (1, 1)
        ]
        self._known: dict[tuple[int, ...], tuple[Sending, int]] = {}

    def best(self, counts: Counts) -> WayPrice:
        """Return the fastest way for a load within the limit; where none is, refuse and name the smallest."""
        prices = [price_of(sending, level, counts, self.sizes, self.speeds) for sending, level in self._every]
        fitting = [one for one in prices if one.held <= self.limit]
        if not fitting:
            smallest = min(one.held for one in prices)
            raise InfeasibleError(
                "No way of sending this load fits.", asked=self.limit, smallest_found=smallest, lower_bound=0
            )
        return min(fitting, key=lambda one: one.seconds)

    def choose(self, counts: Counts) -> WayPrice:
        """Return the way of a load's bucket, priced for the load; it is chosen where the bucket is new."""
        arrive = counts.sum(0)
        mean = max(float(arrive.mean()), 1.0)
        bucket = tuple(round(_BUCKET * math.log2(max(x, 1.0))) for x in (mean, float(arrive.max()) / mean))
        if bucket in self._known:
            priced = price_of(*self._known[bucket], counts, self.sizes, self.speeds)
            if priced.held <= self.limit:
                return priced
        found = self.best(counts)
        self._known[bucket] = (found.sending, found.levels)
        return found
