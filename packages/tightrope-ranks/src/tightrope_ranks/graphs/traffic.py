"""Add up what messages and halos take, and choose what becomes of halos under bytes per rank.

Idea        A layer that reads its halo again keeps it as floats, keeps the bytes that arrived, or has them
            sent again. Rows of the input are kept, or sent in each epoch. Every choice is played, event by
            event.
Source      Mostafa, Sequential Aggregation and Rematerialization, MLSys 2022 (SAR): halos that are sent
            again.
Guarantee   The cheapest choice within the limit by `price`. The smallest limit that is named works. The
            forecast is the peak of `RowExchange` with these widths.
Complexity  3^layers choices a rank.
Gaps        Ranks choose one by one: each leaves room to send its rows to all others again.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope_ranks.compress.rows import row_bytes
from tightrope_ranks.values.graphs import GraphPlan

_DECODE, _WIRE = 4e-10, 8e-9
Key = tuple[int, bool]
"""A layer, and whether it is its backward."""
Keyed = dict[Key, list[np.ndarray]]
"""Of each route, one number a row."""


def uniform(plan: GraphPlan, bits: int) -> Keyed:
    """Give all rows the same width; the input has no gradients."""
    keys = [(0, False), *itertools.product(range(1, len(plan.columns)), (False, True))]
    return {key: [np.full(len(route.rows), bits, np.uint8) for route in plan.routes] for key in keys}


class RowTraffic:
    """What travels on the routes of a plan: bytes of each message with some widths, and as floats."""

    def __init__(self, plan: GraphPlan, widths: Keyed) -> None:
        self.plan, self.widths, self.reads = plan, widths, plan.held[0]
        self.ends = np.array([(one.source, one.target) for one in plan.routes], np.int64).reshape(-1, 2).T
        rows = np.array([len(one.rows) for one in plan.routes], np.int64)
        self.floats = [rows * columns * 4 for columns in plan.columns]
        self.sizes: Mapping[Key, np.ndarray] = {
            key: np.array([row_bytes(plan.columns[key[0]], bits).sum() for bits in those], np.int64)
            for key, those in widths.items()
        }

    def going(self, key: Key, *, again: bool = False) -> list[int]:
        """List the routes of a message of each epoch, or of rows that the backward gets again."""
        (layer, backward), holds = key, self.plan.holds
        often, never = backward or (layer > 0 and not again), again and (backward or not self.reads)
        return [
            k for k, one in enumerate(self.plan.routes)
            if not never and (often or holds[one.target][layer] == "fetched")
        ]  # fmt: skip

    def by_sender(self, key: Key, routes: Sequence[int]) -> np.ndarray:
        """Add up the bytes that each rank sends."""
        senders = self.ends[int(key[1])][routes]
        return np.bincount(senders, self.sizes[key][routes], self.plan.ranks).astype(np.int64)


class _LayerTraffic(NamedTuple):
    """Bytes of a rank in front of a layer: as floats, and as messages with their widths."""

    halo: Bytes
    floats: Bytes
    floats_again: Bytes  # to the ranks that have rows sent again; those of the input in each epoch
    sent: Bytes
    sent_again: Bytes
    arriving: Bytes
    gradients: Bytes  # both ways


def sums_of(traffic: RowTraffic, rank: int, holds: Sequence[Sequence[str]]) -> list[_LayerTraffic]:
    """Add up what one rank sends and gets; of ``holds`` those of the others are read."""
    (of, to), found = traffic.ends == rank, []
    for layer, floats in enumerate(traffic.floats):
        again = of & np.array([holds[k][layer] == "fetched" for k in traffic.ends[1]], bool)
        rows, back = traffic.sizes[layer, False], traffic.sizes.get((layer, True), floats)
        pairs = (floats, to), (floats, of), (floats, again), (rows, of), (rows, again), (rows, to)
        found.append(_LayerTraffic(*(int(size[mask].sum()) for size, mask in (*pairs, (back, of | to)))))
    return found


def peak(layers: Sequence[_LayerTraffic], reads: bool, mine: Sequence[str]) -> Bytes:
    """Play the start, an evaluation and an epoch of one rank; give its most bytes."""
    live = first = layers[0].halo * (mine[0] != "fetched")
    events = [layers[0].floats - layers[0].floats_again + 2 * first]
    for layer, (one, hold) in enumerate(zip(layers, mine, strict=True)):
        floats, sent = (one.floats, one.sent) if layer else (one.floats_again, one.sent_again)
        comes = layer > 0 or not first
        events.append(first + floats + 2 * one.halo * comes)
        events.append(live + sent + (one.arriving + one.halo) * comes)
        if hold == "kept" and comes:
            events.append(live + 2 * one.halo)
            live += one.halo
        live += one.arriving * (hold == "packed")
    for layer, (one, hold) in reversed(list(enumerate(zip(layers, mine, strict=True)))):
        if reads:
            events.append(live + one.sent_again + (one.arriving + one.halo) * (hold == "fetched"))
        if layer and hold in ("kept", "packed"):
            events.append(live + one.halo)
            live -= one.arriving if hold == "packed" else one.halo
        if layer:
            events.append(live + (1 + reads) * one.halo + one.gradients)
    return max(events)


def choose_holds(traffic: RowTraffic) -> tuple[tuple[str, ...], ...]:
    """Choose per rank and layer within the limit of the plan; sizes are the largest that will be used.

    Raises:
        InfeasibleError: the limit cannot be held; names one that can.
    """
    others = ("kept", "packed", "fetched") if traffic.reads else ("none",)
    ranks, limit = traffic.plan.ranks, traffic.plan.limit
    everyone = [("fetched",) * len(traffic.floats)] * ranks
    chosen, smallest = [], (0, 0)
    for rank in range(ranks):
        priced, layers = [], sums_of(traffic, rank, everyone)
        for holds in itertools.product(("kept", "fetched"), *[others] * (len(layers) - 1)):
            start = layers[0].floats + 2 * layers[0].halo * (holds[0] == "kept")  # all others keep the input
            priced.append(
                (price(layers, traffic.reads, holds), max(start, peak(layers, traffic.reads, holds)), holds)
            )
        smallest = max(smallest, (min(size for _, size, _ in priced), rank))
        chosen.append(min((one for one in priced if limit is None or one[1] <= limit), default=(0, 0, ()))[2])
    if limit is not None and limit < smallest[0]:
        raise InfeasibleError(
            f"messages and halos cannot be held to {format_bytes(limit)} per rank. Rank {smallest[1]} needs "
            f"most. The smallest limit that works is {smallest[0]} bytes ({format_bytes(smallest[0])}).",
            asked=limit, smallest_found=smallest[0],
        )  # fmt: skip
    return tuple(chosen)


def price(layers: Sequence[_LayerTraffic], reads: bool, mine: Sequence[str]) -> float:
    """Give the seconds that a choice adds to an epoch, at 1 Gbit/s and the decoder's pace."""
    seconds = 0.0
    for layer, (one, hold) in enumerate(zip(layers, mine, strict=True)):
        decoded = one.halo * _DECODE
        times = (layer == 0) + reads  # forward of the input, and where the backward reads it
        fetched = times * (one.arriving * _WIRE + decoded)
        seconds += fetched if hold == "fetched" else decoded * (hold == "packed")
    return seconds
