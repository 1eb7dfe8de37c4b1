"""Train over parties that hold different rows of the same features.

The server sums histograms, in the clear or behind pairwise masks, picks splits and broadcasts them. With one
party and no masks this is the central training that all others are compared with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope_fleet.secure import SecureGroup, Words, agree, plain_sum
from tightrope_fleet.trees.bins import CutTable, Floats, Ints, agree_cuts, range_cuts
from tightrope_fleet.trees.forest import Forest, TreeNode
from tightrope_fleet.trees.grow import Grower, Histograms, TreeSplit
from tightrope_fleet.trees.params import MAX_ROWS, Boosting
from tightrope_fleet.trees.parties import Learner, PartyTable, RowWork, bits_for, held_out, work_of
from tightrope_fleet.trees.private import Privacy, PrivateChoice
from tightrope_fleet.trees.wire import LEAF, VERDICT, Wire, as_message


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
    derived: list[list[Floats]] = field(default_factory=list)
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
            message = np.zeros((count, self.params.channels, width), np.int64)
            message[: len(nodes)] = side.work.histogram(nodes, side.sums)
            vectors.append(message.reshape(-1).view(np.uint64))
        total = self.adder(vectors) if count else vectors[0]
        return total.view(np.int64).reshape(count, self.params.channels, width)[: len(nodes)]

    def divide(self, splits: Sequence[TreeSplit], room: int) -> None:
        """Broadcast splits; every party moves its own rows."""
        message = as_message(splits, room if self.params.padded else 0)
        for party, side in zip(self.parties, self.sides, strict=True):
            self.adder.wire.receive(party, message.nbytes)
            if splits:
                side.work.move(splits, *side.work.goes_left(splits))

    def begin(self, output: int) -> None:
        """Put all rows into the root of the next tree; derive at the first one of a round."""
        for side in self.sides:
            if output == 0:
                side.derived = side.learner.derivatives()
            side.work.begin()
            side.sums = side.derived[output]

    def loss(self) -> int:
        """Sum the loss of rows that are held out."""
        total = self.adder([side.learner.loss().view(np.uint64) for side in self.sides])
        for party in self.parties:
            self.adder.wire.receive(party, VERDICT - 8)
        return int(total.view(np.int64)[0])

    def finish(self, tree: tuple[TreeNode, ...], output: int) -> None:
        """Broadcast leaves; every party adds them to its scores."""
        values = np.array([node.value for node in tree])
        most = 2 * self.params.leaves - 1 if self.params.leaves else 2 ** (self.params.depth + 1) - 1
        size = most if self.params.padded else len(values)
        for party, side in zip(self.parties, self.sides, strict=True):
            self.adder.wire.receive(party, size * LEAF)
            side.learner.score[:, output] += values[side.work.node]


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
        known = np.arange(params.classes or 2)
        if params.loss != "squared" and not (fits := np.isin(party.labels, known)).all():
            row = int(np.flatnonzero(~fits)[0])
            takes = "0 and 1" if params.loss == "logistic" else f"0 to {params.classes - 1}"
            raise TightropeError(
                f"party {party.name!r}: label {party.labels[row]:g} in row {row}; the {params.loss} loss "
                f"takes {takes}."
            )
    return num_rows


def base_of(
    parties: Sequence[PartyTable],
    held: Sequence[NDArray[np.bool_]],
    params: Boosting,
    bits: int,
    summed: Callable[[list[Words]], Words],
) -> float:
    """Begin squared losses with the mean of all labels that are trained on; other losses with 0.

    Raises:
        TightropeError: no row with a weight is left to train on.
    """
    sums = []
    for party, out in zip(parties, held, strict=True):
        assert party.labels is not None
        weights = np.where(out, 0.0, 1.0 if party.weights is None else party.weights)
        both = [np.rint(one * 2.0**bits).sum() for one in (weights * party.labels, weights)]
        sums.append(np.array(both, np.int64).view(np.uint64))
    if params.loss != "squared":
        return 0.0
    total, count = summed(sums).view(np.int64)
    if count <= 0:
        raise TightropeError("no row is left to train on: give weights above 0, or hold out fewer rows.")
    return float(total) / float(count)


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
        check_private(parties)
        cuts = range_cuts(privacy.ranges_for(parties[0].table.shape[1]), params.bins)
        private = PrivateChoice(privacy, params)
    held = [held_out(party, params) for party in parties]
    bits = shared_bits(parties, num_rows, params)
    base = base_of(parties, held, params, bits, adder)
    clip = None if privacy is None else privacy.clip
    sides = [
        RowSide(work_of(party.table, cuts), Learner(party, params, bits, num_rows, base, out, clip))
        for party, out in zip(parties, held, strict=True)
    ]
    adder.phase = "grow"
    trees = boosted(params, cuts, bits, RowParties(params, parties, sides, adder), private, progress)
    names = tuple(features) or tuple(f"x{f}" for f in range(parties[0].table.shape[1]))
    return Forest(names, base, params.loss, trees, params.outputs), cuts, wire


def shared_bits(parties: Sequence[PartyTable], num_rows: int, params: Boosting) -> int:
    """Choose the bits behind the point from the largest label and weight of all."""
    label = max(party.largest_label for party in parties)
    weight = max(party.largest_weight for party in parties)
    return bits_for(2.0 ** np.ceil(np.log2(max(label, 1.0))), num_rows, params.loss, weight)


class Rounds(Histograms, Protocol):
    """Parties, as whoever counts the rounds asks them."""

    def begin(self, output: int) -> None:
        """Put all rows into the root of the next tree; derive at the first one of a round."""

    def finish(self, tree: tuple[TreeNode, ...], output: int) -> None:
        """Add the leaves of a tree to the sums of one output."""

    def loss(self) -> int:
        """Sum the loss of rows that are held out."""


def boosted(
    params: Boosting,
    cuts: CutTable,
    bits: int,
    data: Rounds,
    private: PrivateChoice | None,
    progress: Callable[[int], None] | None,
) -> tuple[tuple[TreeNode, ...], ...]:
    """Grow round after round, a tree per output, until all are made or held-out rows get no better."""
    grower = Grower(params, cuts, bits)
    if private is not None:
        grower.choose, grower.worth = private.choose, private.worth
    trees: list[tuple[TreeNode, ...]] = []
    least, best = None, 0
    for number in range(params.trees):
        for output in range(params.outputs):
            data.begin(output)
            if private is not None:
                private.begin_tree()
            trees.append(grower.tree(data))
            data.finish(trees[-1], output)
        if progress is not None:
            progress(number + 1)
        if params.stop:
            loss = data.loss()
            if least is None or loss < least:
                least, best = loss, number + 1
            elif number + 1 - best >= params.stop:
                break
    return tuple(trees[: best * params.outputs] if params.stop else trees)


def check_private(parties: Sequence[PartyTable]) -> None:
    """Refuse weights with differential privacy: a row would move sums by more than is accounted for.

    Raises:
        TightropeError: a party has weights.
    """
    if any(party.weights is not None for party in parties):
        raise TightropeError("differential privacy takes no weights: leave them out.")


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
