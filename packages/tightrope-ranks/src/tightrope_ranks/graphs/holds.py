"""Choose what becomes of halos until the backward, under bytes per rank.

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
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope_ranks.graphs.rows import row_bytes
from tightrope_ranks.values.graphs import Route

_DECODE, _WIRE, _FLOAT = 4e-10, 8e-9, 4
Keyed = dict[tuple[int, bool], list[np.ndarray]]
"""Per layer and direction: of each route, one number a row."""


class RowTraffic:
    """What travels: the routes of and to each rank, and bytes of each message per layer and direction."""

    def __init__(self, columns: Sequence[int], reads: bool, routes: Sequence[Route], widths: Keyed) -> None:
        self.columns, self.reads, self.routes = columns, reads, routes
        self.of: dict[int, list[int]] = defaultdict(list)
        self.to: dict[int, list[int]] = defaultdict(list)
        for k, route in enumerate(routes):
            self.of[route.source].append(k)
            self.to[route.target].append(k)
        self.sizes = {
            key: [int(row_bytes(columns[key[0]], bits).sum()) for bits in those]
            for key, those in widths.items()
        }

    def floats(self, layer: int, routes: Sequence[int]) -> Bytes:
        """Add up the bytes of rows as floats."""
        return sum(len(self.routes[k].rows) for k in routes) * self.columns[layer] * _FLOAT

    def sent(self, layer: int, routes: Sequence[int], *, backward: bool = False) -> Bytes:
        """Add up the bytes of messages."""
        return sum(self.sizes[layer, backward][k] for k in routes)


def peak(all_: RowTraffic, rank: int, holds: Sequence[Sequence[str]]) -> Bytes:
    """Play the start, an evaluation and an epoch of one rank; give its most bytes."""
    of, to, mine = all_.of[rank], all_.to[rank], holds[rank]
    layers = range(len(all_.columns))
    rows = [all_.floats(layer, to) for layer in layers]
    fetched = [[k for k in of if holds[all_.routes[k].target][layer] == "fetched"] for layer in layers]
    live = first = rows[0] * (mine[0] != "fetched")
    events = [all_.floats(0, of) - all_.floats(0, fetched[0]) + 2 * first]
    for layer in layers:
        leaving = of if layer else fetched[0]
        comes = layer > 0 or not first
        arriving = all_.sent(layer, to) * comes
        events.append(first + all_.floats(layer, leaving) + 2 * rows[layer] * comes)
        events.append(live + all_.sent(layer, leaving) + arriving + rows[layer] * comes)
        if mine[layer] == "kept" and comes:
            events.append(live + 2 * rows[layer])
            live += rows[layer]
        live += arriving * (mine[layer] == "packed")
    for layer in reversed(layers):
        arriving = all_.sent(layer, to)
        if all_.reads:
            again = (arriving + rows[layer]) * (mine[layer] == "fetched")
            events.append(live + all_.sent(layer, fetched[layer]) + again)
        if layer and mine[layer] in ("kept", "packed"):
            events.append(live + rows[layer])
            live -= arriving if mine[layer] == "packed" else rows[layer]
        if layer:
            back = all_.sent(layer, [*of, *to], backward=True)
            events.append(live + (1 + all_.reads) * rows[layer] + back)
    return max(events)


def choose_holds(all_: RowTraffic, ranks: int, limit: Bytes | None) -> tuple[tuple[str, ...], ...]:
    """Choose per rank and layer; ``all_`` has the largest sizes that will be used.

    Raises:
        InfeasibleError: the limit cannot be held; names one that can.
    """
    others = ("kept", "packed", "fetched") if all_.reads else ("none",)
    everyone = [("fetched",) * len(all_.columns)] * ranks
    chosen, smallest = [], 0
    for rank in range(ranks):
        priced = []
        for holds in itertools.product(("kept", "fetched"), *[others] * (len(all_.columns) - 1)):
            size = peak(all_, rank, [*everyone[:rank], holds, *everyone[rank + 1 :]])
            own = 2 * all_.floats(0, all_.to[rank]) * (holds[0] == "kept")
            size = max(size, own + all_.floats(0, all_.of[rank]))  # where all others keep the input
            priced.append((price(all_, rank, holds), size, holds))
        smallest = max(smallest, min(size for _, size, _ in priced))
        chosen.append(min((one for one in priced if limit is None or one[1] <= limit), default=(0, 0, ()))[2])
    if limit is not None and limit < smallest:
        raise InfeasibleError(
            f"messages and halos cannot be held to {format_bytes(limit)} per rank. "
            f"The smallest limit that works is {smallest} bytes ({format_bytes(smallest)}).",
            asked=limit, smallest_found=smallest,
        )  # fmt: skip
    return tuple(chosen)


def price(all_: RowTraffic, rank: int, holds: Sequence[str]) -> float:
    """Give the seconds that a choice adds to an epoch, at 1 Gbit/s and the decoder's pace."""
    seconds, to = 0.0, all_.to[rank]
    for layer, hold in enumerate(holds):
        decoded = all_.floats(layer, to) * _DECODE
        times = (layer == 0) + all_.reads  # forward of the input, and where the backward reads it
        fetched = times * (all_.sent(layer, to) * _WIRE + decoded)
        seconds += fetched if hold == "fetched" else decoded * (hold == "packed")
    return seconds
