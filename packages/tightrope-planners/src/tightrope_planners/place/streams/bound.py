"""The most bytes that can be alive at once when ops run on parallel streams.

Idea        Storages of which none precedes another can all be alive at once, in some execution; the
            heaviest such set is a maximum-weight antichain of the reuse relation.
Source      Dilworth (1950); flow formulation as in Fulkerson (1956), on suffixes instead of pairs
Guarantee   No placement that is safe in every execution has a smaller peak. The witness adds up to
            the bound. With one stream it is the largest sum of sizes alive at one op.
Complexity  a breadth-first pass over T storages and S streams per phase of the flow: O(T S)
Gaps        fragmentation: a placement may need more
"""

from dataclasses import dataclass

import numpy as np

from tightrope.core import Bytes, NativeError, StorageId, format_bytes
from tightrope_planners.place.streams import fallback
from tightrope_planners.place.streams.relation import Relation
from tightrope_planners.solvers import safety as native
from tightrope_planners.solvers.safety import Births, Booleans


@dataclass(frozen=True, slots=True)
class LiveBound:
    """The heaviest set of storages that can be alive at once.

    Attributes:
        bytes: their sizes added up.
        witness: their numbers, ascending.
    """

    bytes: Bytes
    witness: tuple[StorageId, ...]

    def __str__(self) -> str:
        return f"these {len(self.witness)} storages can all be alive at once: {format_bytes(self.bytes)}"


def live_bound(relation: Relation) -> LiveBound:
    """Compute the heaviest set of storages that can be alive at once.

    Args:
        relation: of the graph.

    Returns:
        Bytes and witness.

    Example:
        >>> from tightrope_planners.place.streams import StreamGraph, StreamStorage, reuse_relation
        >>> storages = [StreamStorage(64, 0), StreamStorage(128, 1), StreamStorage(32, 2)]
        >>> print(live_bound(reuse_relation(StreamGraph.of([0, 1, 0], storages))))
        these 2 storages can all be alive at once: 192 B
    """
    weight, _, inside = heaviest(relation.births)
    return LiveBound(weight, tuple(np.sort(relation.storages[inside]).tolist()))


def heaviest(births: Births, *, budget: Bytes = -1) -> tuple[Bytes, int, Booleans]:
    """Grow the heaviest antichain storage by storage; see `tightrope_planners.solvers.safety.antichain`."""
    if len(births.size) == 0:
        return 0, 0, np.zeros(0, dtype=np.bool_)
    try:
        return native.antichain(births, budget=budget)
    except NativeError:
        return fallback.antichain(births, budget=budget)
