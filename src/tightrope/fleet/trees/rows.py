"""Train over parties that hold different rows of the same features.

The server sums histograms, in the clear or behind pairwise masks, picks splits and broadcasts them. With one
party and no masks this is the central training that all others are compared with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.fleet.secure import SecureGroup, Words, agree, plain_sum
from tightrope.fleet.trees.bins import CutTable, Floats, Ints, agree_cuts, range_cuts
from tightrope.fleet.trees.forest import Forest, TreeNode
from tightrope.fleet.trees.grow import Grower, TreeSplit
from tightrope.fleet.trees.params import MAX_ROWS, Boosting
from tightrope.fleet.trees.parties import Learner, PartyTable, RowWork, bits_for, work_of
from tightrope.fleet.trees.private import Privacy, PrivateChoice
from tightrope.fleet.trees.wire import LEAF, Wire, as_message


@dataclass(slots=True)
class RowSum:
    """Adds one vector per party, and counts it."""

    parties: Sequence[PartyTable]
    wire: Wire
    group: SecureGroup | None
    phase: str = "agree"
    round_: int = 0

    def __call__(self, vectors: list[Words]) -> Words:
        """Add, modulo 2^64."""
        sent: dict[str, Words] = {}
        for place, (party, vector) in enumerate(zip(self.parties, vectors, strict=True)):
            masked = (
                vector if self.group is None else self.group.members[place].mask(vector, round_=self.round_)
            )
            self.wire.send(party, masked.nbytes, self.phase)
            if self.wire.keep:
                self.wire.seen.append((party.name, masked.copy()))
            sent[party.name] = masked
        self.round_ += 1
        return (
            plain_sum(sent.values()) if self.group is None else self.group.total(sent, round_=self.round_ - 1)
        )


@dataclass(slots=True)
class RowSide:
    """What one party of rows works with."""

    work: RowWork
    learner: Learner
    sums: list[Floats] = field(default_factory=list)


@dataclass(slots=True)
class RowParties:
    """All parties of rows, as the grower asks them."""

    params: Boosting
    parties: Sequence[PartyTable]
    sides: list[RowSide]
    adder: RowSum

    def histogram(self, nodes: Sequence[int], room: int) -> Ints:
        """Sum histograms over the parties."""
        width = int(self.sides[0].work.starts[-1])
        count = room if self.params.padded else len(nodes)
        vectors = []
        for side in self.sides:
            message = np.zeros((count, 2, width), np.int64)
            message[: len(nodes)] = side.work.histogram(nodes, side.sums)
            vectors.append(message.reshape(-1).view(np.uint64))
        total = self.adder(vectors) if count else vectors[0]
        return total.view(np.int64).reshape(count, 2, width)[: len(nodes)]

    def divide(self, splits: Sequence[TreeSplit], room: int) -> None:
        """Broadcast splits; every party moves its own rows."""
        message = as_message(splits, room if self.params.padded else 0)
        for party, side in zip(self.parties, self.sides, strict=True):
            self.adder.wire.receive(party, message.nbytes)
            if splits:
                side.work.move(splits, *side.work.goes_left(splits))

    def finish(self, tree: tuple[TreeNode, ...]) -> None:
        """Broadcast leaves; every party adds them to its scores."""
        values = np.array([node.value for node in tree])
        most = 2 * self.params.leaves - 1 if self.params.leaves else 2 ** (self.params.depth + 1) - 1
        size = most if self.params.padded else len(values)
        for party, side in zip(self.parties, self.sides, strict=True):
            self.adder.wire.receive(party, size * LEAF)
            side.learner.score += values[side.work.node]


def check_rows(parties: Sequence[PartyTable], params: Boosting) -> int:
    """Refuse parties that cannot be trained over; return the number of rows.

    Raises:
        TightropeError: none, equal names, no labels, labels that the loss does not take, or too many rows.
    """
    if not parties or len({party.name for party in parties}) != len(parties):
        raise TightropeError("parties: give one or more, of different names.")
    num_rows = sum(len(party.table) for party in parties)
    if num_rows > MAX_ROWS:
        raise TightropeError(f"{num_rows} rows: at most {MAX_ROWS} are summed exactly.")
    for party in parties:
        if party.labels is None:
            raise TightropeError(
                f"party {party.name!r} has no labels: every party of rows needs those of its rows."
            )
        if params.loss == "logistic" and not np.isin(party.labels, (0.0, 1.0)).all():
            row = int(np.flatnonzero(~np.isin(party.labels, (0.0, 1.0)))[0])
            raise TightropeError(
                f"party {party.name!r}: label {party.labels[row]:g} in row {row}; the logistic loss "
                "takes 0 and 1."
            )
    return num_rows


def base_of(
    parties: Sequence[PartyTable], params: Boosting, bits: int, summed: Callable[[list[Words]], Words]
) -> float:
    """Begin squared losses with the mean of all labels, in fixed point; logistic ones with 0."""
    if params.loss == "logistic":
        return 0.0
    sums = []
    for party in parties:
        assert party.labels is not None
        sums.append(
            np.array([np.rint(party.labels * 2.0**bits).sum(), len(party.labels)], np.int64).view(np.uint64)
        )
    total, count = summed(sums).view(np.int64)
    return float(total) / float(count) * 2.0**-bits


def train_over_rows(
    parties: Sequence[PartyTable],
    params: Boosting,
    *,
    features: Sequence[str] = (),
    masks: bool = False,
    privacy: Privacy | None = None,
    wire: Wire | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Forest, CutTable, Wire]:
    """Train a forest over parties of rows.

    Args:
        parties: their tables, with labels.
        params: what is asked for.
        features: names; default ``x0``, ``x1`` ...
        masks: hide every vector behind pairwise masks; takes two or more parties.
        privacy: differential privacy, see `Privacy`.
        wire: where bytes are counted.
        progress: called with the number of finished trees.

    Returns:
        The forest, its cuts, and the bytes.

    Raises:
        TightropeError: what was given does not go together.
        PartyGoneError: a party stopped answering.
    """
    num_rows = check_rows(parties, params)
    wire = wire or Wire()
    group = agree([party.name for party in parties]) if masks else None
    adder = RowSum(parties, wire, group)
    if privacy is None:
        cuts = agree_cuts([party.table for party in parties], bins=params.bins, summed=adder)
        private = None
    else:
        cuts = range_cuts(privacy.ranges_for(parties[0].table.shape[1]), params.bins)
        private = PrivateChoice(privacy, params)
    largest = max(
        float(np.abs(party.labels).max(initial=0.0)) for party in parties if party.labels is not None
    )
    bits = bits_for(2.0 ** np.ceil(np.log2(max(largest, 1.0))), num_rows, params.loss)
    base = base_of(parties, params, bits, adder)
    sides = []
    for party in parties:
        assert party.labels is not None
        score = np.full(len(party.labels), base)
        clip = None if privacy is None else privacy.clip
        learner = Learner(party.labels, params, bits, num_rows, score, clip)
        sides.append(RowSide(work_of(party.table, cuts), learner))
    adder.phase = "grow"
    data = RowParties(params, parties, sides, adder)
    grower = Grower(params, cuts, bits)
    if private is not None:
        grower.choose, grower.worth = private.choose, private.worth
    trees = []
    for number in range(params.trees):
        for side in sides:
            side.work.begin()
            side.sums = side.learner.derivatives()
        if private is not None:
            private.begin_tree()
        tree = grower.tree(data)
        data.finish(tree)
        trees.append(tree)
        if progress is not None:
            progress(number + 1)
    names = tuple(features) or tuple(f"x{f}" for f in range(parties[0].table.shape[1]))
    return Forest(names, base, params.loss, tuple(trees)), cuts, wire


def agree_rows(parties: Sequence[PartyTable], params: Boosting, privacy: Privacy | None = None) -> CutTable:
    """Find the cuts that a training over rows would use; nothing is counted or masked."""
    check_rows(parties, params)
    if privacy is not None:
        return range_cuts(privacy.ranges_for(parties[0].table.shape[1]), params.bins)
    return agree_cuts([party.table for party in parties], bins=params.bins, summed=plain_sum)


def share_rows(
    table: NDArray[np.float32], labels: Floats, count: int, *, seed: int = 0, skewed: bool = False
) -> list[PartyTable]:
    """Divide rows over parties, at random or so that labels are skewed; for tests and simulations."""
    order = (
        np.argsort(labels, kind="stable") if skewed else np.random.default_rng(seed).permutation(len(labels))
    )
    parts = np.array_split(order, count)
    return [PartyTable(f"party{p}", table[part], labels[part]) for p, part in enumerate(parts)]
