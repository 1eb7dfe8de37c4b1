"""Waits and addresses together: a capacity for parallel streams, kept by addresses.

Idea        Ask for waits whose bound fits, place, and where the addresses miss the capacity ask again
            for a bound that is lower by the miss.
Source      own
Guarantee   The peak of the result is within the capacity, and the placement is safe under its waits.
Complexity  at most eight rounds of `bounded_lag` and `place_streams`
Gaps        A capacity may be refused although other waits or other addresses would reach it; the error
            carries what is proved and what was found.
"""

from collections.abc import Sequence
from typing import Final

from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope_planners.place.streams.graph import StreamGraph
from tightrope_planners.place.streams.lag import Lag, bounded_lag
from tightrope_planners.place.streams.placer import StreamPlacement, place_streams

_ROUNDS: Final = 8


def fit_streams(
    graph: StreamGraph,
    capacity: Bytes,
    *,
    seconds: float = 1.0,
    seed: int = 0,
    alignments: Sequence[Bytes] | None = None,
) -> tuple[Lag, StreamPlacement]:
    """Choose waits and offsets so that the arena of all streams is within a capacity.

    Args:
        graph: ops on streams; its own waits stay.
        capacity: bytes of the arena.
        seconds: limit on the effort of every round.
        seed: of the placer's random orders.
        alignments: one per storage, at least 1.

    Returns:
        The waits, and a placement whose peak is at most ``capacity``; run both or neither.

    Raises:
        InfeasibleError: no waits can reach the capacity (proved), or none was found with addresses.
        TightropeError: a use that no wait orders, or a malformed argument.

    Example:
        >>> from tightrope_planners.place.streams import StreamStorage
        >>> graph = StreamGraph.of([0, 1], [StreamStorage(64, 0), StreamStorage(64, 1)])
        >>> lag, placement = fit_streams(graph, 64)
        >>> lag.added, placement.offsets
        (((0, 1),), (0, 0))
    """
    target, smallest = capacity, None
    for _ in range(_ROUNDS):
        try:
            lag = bounded_lag(graph, target, seconds=seconds)
        except InfeasibleError as error:
            if smallest is None:
                raise
            raise _missed(capacity, smallest, error.lower_bound) from error
        placement = place_streams(
            lag.graph, capacity=capacity, seconds=seconds, seed=seed, alignments=alignments
        )
        if placement.peak <= capacity:
            return lag, placement
        smallest = min(placement.peak, smallest or placement.peak)
        target = max(0, target - (placement.peak - capacity))
    raise _missed(capacity, smallest or 0, 0)


def _missed(capacity: Bytes, smallest: Bytes, bound: Bytes) -> InfeasibleError:
    return InfeasibleError(
        f"the capacity is {format_bytes(capacity)} ({capacity} B); smallest arena found "
        f"{smallest} B. Waits bring the live bytes down to {bound} B at best. Give more seconds, "
        f"or a capacity of {smallest} B.",
        asked=capacity,
        smallest_found=smallest,
        lower_bound=bound,
    )
