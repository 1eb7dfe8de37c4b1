"""Count what goes between parties and server, and forecast it from shapes alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tightrope.core.units import Bytes
from tightrope_fleet.secure import PartyGoneError
from tightrope_fleet.trees.grow import TreeSplit
from tightrope_fleet.trees.params import Boosting
from tightrope_fleet.trees.parties import PartyTable

SPLIT: Final = np.dtype(
    [
        ("node", "<i4"),
        ("feature", "<i4"),
        ("last", "<i4"),
        ("missing", "<i4"),
        ("left", "<i4"),
        ("right", "<i4"),
    ]
)
"""A split on the wire, 24 bytes."""
LEAF: Final[Bytes] = 8
VERDICT: Final[Bytes] = 16
"""The loss of held-out rows, and whether to go on."""
_M = TypeVar("_M", bound=np.generic)


@dataclass(slots=True)
class Wire:
    """Bytes per party and phase: ``agree`` before training, ``grow`` during it.

    Attributes:
        up: from a party, by (party, phase).
        down: to a party.
        messages: how many messages each party has sent.
        seen: what the server saw, kept where ``keep`` is set: for tests of what it can learn.
    """

    up: dict[tuple[str, str], Bytes] = field(default_factory=dict)
    down: dict[tuple[str, str], Bytes] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    keep: bool = False
    seen: list[tuple[str, NDArray[np.uint64]]] = field(default_factory=list)

    def send(self, party: PartyTable, size: Bytes, phase: str = "grow") -> None:
        """Count a message of a party.

        Raises:
            PartyGoneError: the party does not answer.
        """
        number = self.messages[party.name] = self.messages.get(party.name, 0) + 1
        if party.fails_at is not None and number >= party.fails_at:
            raise PartyGoneError(
                f"party {party.name!r} does not answer: its message {number} did not come. Nothing was "
                "written; "
                "train again when it is back, or without it.",
                party=party.name,
            )
        self.up[party.name, phase] = self.up.get((party.name, phase), 0) + size

    def receive(self, party: PartyTable, size: Bytes, phase: str = "grow") -> None:
        """Count a message to a party."""
        self.down[party.name, phase] = self.down.get((party.name, phase), 0) + size

    def bytes_of(self, party: str, phase: str = "grow") -> Bytes:
        """Both ways."""
        return self.up.get((party, phase), 0) + self.down.get((party, phase), 0)


def as_message(splits: Sequence[TreeSplit], room: int) -> NDArray[np.void]:
    """Write splits with the room of ``room``; what is unused has node -1."""
    message = np.zeros(max(room, len(splits)), SPLIT)
    message["node"] = -1
    for place, split in enumerate(splits):
        message[place] = (
            split.node,
            split.feature,
            split.last_left,
            split.missing_left,
            split.left,
            split.right,
        )
    return message


def forecast_grow(params: Boosting, bins: int) -> Bytes:
    """Bytes per party, both ways, of a padded training over rows; exact, known before the first tree.

    Per tree: a histogram of the root; per level with room for 2^level splits the splits, and but for the last
    level as many histograms; by leaf, one of each per split; then the leaves. A training that may stop early
    takes so much at most.

    >>> forecast_grow(Boosting(trees=1, depth=2), bins=10)
    448
    """
    node = params.channels * 8 * bins
    if params.leaves:
        rooms, leaves = [1] * (params.leaves - 1), 2 * params.leaves - 1
    else:
        rooms, leaves = [2**level for level in range(params.depth)], 2 ** (params.depth + 1) - 1
    per_tree = node + sum(rooms) * SPLIT.itemsize + sum(rooms[:-1]) * node + leaves * LEAF
    return params.trees * (params.outputs * per_tree + VERDICT * (params.stop > 0))


def least_rows(params: Boosting) -> int:
    """Rows that a child has at least where splits are chosen by gain: a logistic loss curves by 1/4 at most.

    >>> least_rows(Boosting(child_weight=1.0)), least_rows(Boosting(loss="squared"))
    (4, 1)
    """
    most = 0.25 if params.loss != "squared" and params.hessian == "exact" else 1.0
    return max(math.ceil(params.child_weight / most), 1)


def most_columns(params: Boosting, *, rows: int, bins: int, parties: int, least: int = 0) -> Bytes:
    """Bytes of one party, both ways, of a plain training over columns: what they cannot exceed.

    Per tree: derivatives of every row; a histogram of the root and one per split that another level follows;
    12 bytes per split; and a bit per row of every node that is split, in whole bytes per owner of a feature.

    Args:
        params: of the forest.
        rows: of every table.
        bins: of all features of the party.
        parties: how many there are, the holder of labels included.
        least: rows of a child, see `least_rows`: few rows make few nodes; 0 = a child may be empty.

    >>> most_columns(Boosting(trees=1, depth=2), rows=80, bins=10, parties=2)
    1659
    >>> most_columns(Boosting(trees=1, depth=16), rows=80, bins=10, parties=2, least=4)
    4899
    """
    widest = rows // (2 * least) if least else 1 << params.depth
    levels = [min(1 << level, widest) for level in range(params.depth)]
    full = min(sum(levels), rows // least - 1) if least else sum(levels)
    if params.leaves:
        splits, followed = min(params.leaves - 1, full), min(max(params.leaves - 2, 0), full)
        bits = min(splits * -(-rows // 8), params.depth * (rows // 8) + splits)
    else:
        splits, followed = full, min(sum(levels[:-1]), full)
        bits = sum(rows // 8 + min(parties, level) for level in levels if level)
    sums = 8 * params.channels * bins
    return params.trees * params.outputs * (16 * rows + sums * (1 + followed) + 12 * splits + bits)
