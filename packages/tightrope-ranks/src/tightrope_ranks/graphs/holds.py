"""Choose what becomes of halos until the backward, under bytes per rank.

Idea        A layer that reads its halo again keeps it as floats, keeps the bytes that arrived, or has them sent again.
            Rows of the input are kept over all epochs or sent in each. Every choice is played, event by event.
Source      Mostafa, Sequential Aggregation and Rematerialization, MLSys 2022 (SAR), for the halo that is sent again.
Guarantee   The cheapest choice within the limit by the prices of `price`; the smallest limit that is named works.
            The forecast is the peak of `RowExchange` in every epoch with these widths.
Complexity  3^layers choices a rank.
Gaps        Ranks choose one by one: each leaves room to send its rows to all others again.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope_ranks.graphs.rows import row_bytes
from tightrope_ranks.values.graphs import Route

Sizes = Mapping[tuple[int, bool], Sequence[Bytes]]
"""Per layer and direction: bytes of each route's message."""
_DECODE = 4e-10
_WIRE = 8e-9
_FLOAT = 4


def peak(
    rank: int, columns: Sequence[int], reads: bool, routes: Sequence[Route], sizes: Sizes, holds: Sequence[Sequence[str]]
) -> Bytes:
    """Play an epoch and an evaluation of one rank; give the most bytes that messages and halos take at once."""
    of = [k for k, route in enumerate(routes) if route.source == rank]
    to = [k for k, route in enumerate(routes) if route.target == rank]
    num = sum(len(routes[k].rows) for k in to)
    live, events = 0, [0]

    def leaving(layer: int, fetched: bool, exact: bool = False) -> Bytes:
        those = [k for k in of if not fetched or holds[routes[k].target][layer] == "fetched"]
        return sum(len(routes[k].rows) * columns[layer] * _FLOAT if exact else sizes[layer, False][k] for k in those)

    mine = holds[rank]
    keeps = mine[0] != "fetched"
    kept = sum(len(routes[k].rows) for k in of if holds[routes[k].target][0] != "fetched")
    rows = [num * width * _FLOAT for width in columns]
    events.append(kept * columns[0] * _FLOAT + 2 * rows[0] * keeps)
    live = rows[0] * keeps
    for layer in range(len(columns)):
        resident = layer == 0 and keeps
        events.append(rows[0] * keeps + leaving(layer, layer == 0, True) + 2 * rows[layer] * (not resident))
        arriving = 0 if resident else sum(sizes[layer, False][k] for k in to)
        events.append(live + leaving(layer, layer == 0) + arriving + rows[layer] * (not resident))
        if mine[layer] == "kept" and not resident:
            events.append(live + 2 * rows[layer])
            live += rows[layer]
        live += arriving * (mine[layer] == "packed")
    for layer in reversed(range(len(columns))):
        resident = layer == 0 and keeps
        arriving = sum(sizes[layer, False][k] for k in to)
        again = leaving(layer, True) if reads else 0
        if mine[layer] == "fetched" and reads:
            events.append(live + again + arriving + rows[layer])
        else:
            events.append(live + again)
        if mine[layer] == "packed" or (mine[layer] == "kept" and not resident):
            held = arriving if mine[layer] == "packed" else rows[layer]
            events.append(live + rows[layer])
            live -= held
        if layer:
            back = sum(sizes[layer, True][k] for k in (*of, *to))
            events.append(live + (2 if reads else 1) * rows[layer] + back)
    return max(events)


def choose_holds(
    columns: Sequence[int], reads: bool, routes: Sequence[Route], sizes: Sizes, ranks: int, limit: Bytes | None
) -> tuple[tuple[str, ...], ...]:
    """Choose per rank and layer.

    Args:
        columns: in front of each layer.
        reads: whether layers read their halo in the backward.
        routes: of the plan.
        sizes: of messages, the largest that will be used.
        ranks: how many.
        limit: bytes of a rank; None = any.

    Raises:
        InfeasibleError: the limit cannot be held; names one that can.
    """
    first, others = ("kept", "fetched"), ("kept", "packed", "fetched") if reads else ("none",)
    everyone = [("fetched",) * len(columns)] * ranks
    chosen, smallest = [], 0
    for rank in range(ranks):
        priced = []
        for holds in itertools.product(first, *[others] * (len(columns) - 1)):
            all_ = [holds if other == rank else everyone[other] for other in range(ranks)]
            size = peak(rank, columns, reads, routes, sizes, all_)
            priced.append((price(rank, columns, reads, routes, sizes, holds), size, holds))
        least = min(size for _, size, _ in priced)
        smallest = max(smallest, least)
        within = [one for one in priced if limit is None or one[1] <= limit]
        chosen.append(min(within)[2] if within else ())
    if limit is not None and limit < smallest:
        raise InfeasibleError(
            f"messages and halos cannot be held to {format_bytes(limit)} per rank. "
            f"The smallest limit that works is {smallest} bytes ({format_bytes(smallest)}).",
            asked=limit, smallest_found=smallest,
        )  # fmt: skip
    return tuple(chosen)


def price(
    rank: int, columns: Sequence[int], reads: bool, routes: Sequence[Route], sizes: Sizes, holds: Sequence[str]
) -> float:
    """Give the seconds that a choice adds to an epoch, at 1 Gbit/s and the decoder's pace here."""
    to = [k for k, route in enumerate(routes) if route.target == rank]
    num, seconds = sum(len(routes[k].rows) for k in to), 0.0
    for layer, hold in enumerate(holds):
        decoded = num * columns[layer] * _FLOAT * _DECODE
        sent = sum(sizes[layer, False][k] for k in to) * _WIRE + decoded
        times = (layer == 0) + reads  # forward of the input, and where the backward reads it
        seconds += sent * times if hold == "fetched" else decoded * (hold == "packed")
    return seconds


def message_sizes(columns: Sequence[int], widths: Mapping[tuple[int, bool], Sequence[np.ndarray]]) -> Sizes:
    """Add up the bytes of each message."""
    return {key: [int(row_bytes(columns[key[0]], bits).sum()) for bits in those] for key, those in widths.items()}
