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
from typing import Any

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
        self.layers = range(len(plan.columns))
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


def peak(traffic: RowTraffic, rank: int, holds: Sequence[Sequence[str]]) -> Bytes:
    """Play the start, an evaluation and an epoch of one rank; give its most bytes."""
    (of, to), floats, sizes, mine = traffic.ends == rank, traffic.floats, traffic.sizes, holds[rank]
    halo = [int(one[to].sum()) for one in floats]
    fetched = [of & np.array([holds[one.target][k] == "fetched" for one in traffic.plan.routes], bool)
               for k in traffic.layers]  # fmt: skip
    live = first = halo[0] * (mine[0] != "fetched")
    events: list[Any] = [floats[0][of & ~fetched[0]].sum() + 2 * first]
    for layer in traffic.layers:
        leaving, comes = of if layer else fetched[0], layer > 0 or not first
        arriving = sizes[layer, False][to].sum() * comes
        events.append(first + floats[layer][leaving].sum() + 2 * halo[layer] * comes)
        events.append(live + sizes[layer, False][leaving].sum() + arriving + halo[layer] * comes)
        if mine[layer] == "kept" and comes:
            events.append(live + 2 * halo[layer])
            live += halo[layer]
        live += arriving * (mine[layer] == "packed")
    for layer in reversed(traffic.layers):
        arriving = sizes[layer, False][to].sum()
        if traffic.reads:
            again = (arriving + halo[layer]) * (mine[layer] == "fetched")
            events.append(live + sizes[layer, False][fetched[layer]].sum() + again)
        if layer and mine[layer] in ("kept", "packed"):
            events.append(live + halo[layer])
            live -= arriving if mine[layer] == "packed" else halo[layer]
        if layer:
            events.append(live + (1 + traffic.reads) * halo[layer] + sizes[layer, True][of | to].sum())
    return int(max(events))


def choose_holds(traffic: RowTraffic) -> tuple[tuple[str, ...], ...]:
    """Choose per rank and layer within the limit of the plan; sizes are the largest that will be used.

    Raises:
        InfeasibleError: the limit cannot be held; names one that can.
    """
    others = ("kept", "packed", "fetched") if traffic.reads else ("none",)
    ranks, limit = traffic.plan.ranks, traffic.plan.limit
    everyone = [("fetched",) * len(traffic.layers)] * ranks
    chosen, smallest = [], (0, 0)
    for rank in range(ranks):
        of, to = (int(traffic.floats[0][ends == rank].sum()) for ends in traffic.ends)
        priced = []
        for holds in itertools.product(("kept", "fetched"), *[others] * (len(traffic.layers) - 1)):
            size = peak(traffic, rank, [*everyone[:rank], holds, *everyone[rank + 1 :]])
            size = max(size, of + 2 * to * (holds[0] == "kept"))  # where all others keep the input
            priced.append((price(traffic, rank, holds), size, holds))
        smallest = max(smallest, (min(size for _, size, _ in priced), rank))
        chosen.append(min((one for one in priced if limit is None or one[1] <= limit), default=(0, 0, ()))[2])
    if limit is not None and limit < smallest[0]:
        raise InfeasibleError(
            f"messages and halos cannot be held to {format_bytes(limit)} per rank. Rank {smallest[1]} needs "
            f"most. The smallest limit that works is {smallest[0]} bytes ({format_bytes(smallest[0])}).",
            asked=limit, smallest_found=smallest[0],
        )  # fmt: skip
    return tuple(chosen)


def price(traffic: RowTraffic, rank: int, holds: Sequence[str]) -> float:
    """Give the seconds that a choice adds to an epoch, at 1 Gbit/s and the decoder's pace."""
    seconds, to = 0.0, traffic.ends[1] == rank
    for layer, hold in enumerate(holds):
        decoded = traffic.floats[layer][to].sum() * _DECODE
        times = (layer == 0) + traffic.reads  # forward of the input, and where the backward reads it
        fetched = times * (traffic.sizes[layer, False][to].sum() * _WIRE + decoded)
        seconds += fetched if hold == "fetched" else decoded * (hold == "packed")
    return float(seconds)
