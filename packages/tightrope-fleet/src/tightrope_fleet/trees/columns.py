"""Train over parties that hold different features of the same rows; one of them has the labels.

The holder of labels asks for histograms of the others' features, in the clear or with derivatives encrypted,
picks splits as in the central training, and asks the owner of a feature which rows go left. Others see
ciphertexts, and which rows are together in a node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.core.units import Bytes
from tightrope_fleet.secure import plain_sum
from tightrope_fleet.trees.bins import CutTable, Floats, Ints, agree_cuts, range_cuts
from tightrope_fleet.trees.forest import Forest, TreeNode
from tightrope_fleet.trees.grow import TreeSplit
from tightrope_fleet.trees.paillier import PaillierKey, PaillierPublic, make_key
from tightrope_fleet.trees.params import Boosting, Protection
from tightrope_fleet.trees.parties import Learner, PartyTable, RowWork, held_out, work_of
from tightrope_fleet.trees.private import Privacy, PrivateChoice
from tightrope_fleet.trees.rows import base_of, boosted, check_private, check_rows, shared_bits
from tightrope_fleet.trees.wire import Wire


@dataclass(slots=True)
class ColumnSide:
    """What one party of columns works with.

    Attributes:
        party: its table.
        work: its rows in bins.
        first: number of its first feature among all.
        bin: its first bin among all.
        sealed: ciphertext of every row, for one that is not to see derivatives.
        counted: rows that are trained on, where that is not all.
    """

    party: PartyTable
    work: RowWork
    first: int
    bin: int
    sealed: list[Any] = field(default_factory=list)
    counted: NDArray[np.bool_] | None = None

    def encrypted(self, nodes: Sequence[int], public: PaillierPublic) -> tuple[list[Any], Ints, Ints]:
        """Sum ciphertexts per node and bin; return packed sums, their places and their numbers of rows.

        The most frequent bin of a feature is left out: the holder of labels has the sum of all.
        """
        work, width = self.work, int(self.work.starts[-1])
        slot = work.slots(nodes)
        inside = slot >= 0 if self.counted is None else (slot >= 0) & self.counted
        kept = np.flatnonzero(inside[work.binned.entry_rows])
        rows = work.binned.entry_rows[kept]
        flat = slot[rows] * width + work.binned.entry_bins[kept]
        order = np.argsort(flat, kind="stable")
        places, begins, counts = np.unique(flat[order], return_index=True, return_counts=True)
        rows, square, sealed = rows[order].tolist(), public.square, self.sealed
        sums = []
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            total = sealed[rows[begin]]
            for row in rows[begin + 1 : begin + count]:
                total = total * sealed[row] % square
            sums.append(total)
        packed = [public.pack(sums[at : at + public.pairs]) for at in range(0, len(sums), public.pairs)]
        return packed, places, counts


@dataclass(slots=True)
class ColumnParties:
    """All parties of columns, as the grower asks them; the first one has the labels."""

    params: Boosting
    sides: list[ColumnSide]
    wire: Wire
    learner: Learner
    key: PaillierKey | None
    derived: list[list[Floats]] = field(default_factory=list)
    sums: list[Floats] = field(default_factory=list)

    def begin(self, output: int) -> None:
        """Derive, and hand derivatives to the others, encrypted where there is a key."""
        if output == 0:
            self.derived = self.learner.derivatives()
        self.sums = self.derived[output]
        for side in self.sides:
            side.work.begin()
        num_rows = len(self.learner.labels)
        sealed = []
        if self.key is not None:
            first, second = ([int(v) for v in values] for values in self.sums[:2])
            sealed = [self.key.encrypt(g, h) for g, h in zip(first, second, strict=True)]
        each: Bytes = 16 if self.key is None else self.key.public.size
        for side in self.sides[1:]:
            self.wire.receive(side.party, each * num_rows)
            side.sealed = sealed

    def finish(self, tree: tuple[TreeNode, ...], output: int) -> None:
        """Add the leaves of a tree to the sums of one output."""
        values = np.array([node.value for node in tree])
        self.learner.score[:, output] += values[self.sides[0].work.node]

    def loss(self) -> int:
        """Sum the loss of rows that are held out: the holder of labels has all."""
        return int(self.learner.loss()[0])

    def histogram(self, nodes: Sequence[int], room: int) -> Ints:
        """Put the histograms of all parties next to each other."""
        parts = []
        for place, side in enumerate(self.sides):
            if place == 0 or self.key is None:
                part = side.work.histogram(nodes, self.sums)
                if place:
                    self.wire.send(side.party, part.nbytes)
            else:
                part = self._decrypted(side, nodes)
            parts.append(part)
        return np.concatenate(parts, axis=2)

    def _decrypted(self, side: ColumnSide, nodes: Sequence[int]) -> Ints:
        assert self.key is not None
        public = self.key.public
        packed, places, counts = side.encrypted(nodes, public)
        self.wire.send(side.party, len(packed) * public.size + places.nbytes + counts.nbytes)
        width, starts = int(side.work.starts[-1]), side.work.starts
        channels = self.params.channels
        hist = np.zeros((len(nodes) * width, channels), np.int64)
        for at, one in enumerate(packed):
            here = slice(at * public.pairs, (at + 1) * public.pairs)
            hist[places[here], :2] = self.key.decrypt(one, counts[here].tolist())
        if channels == 3:
            hist[places, 2] = counts
        shaped = np.ascontiguousarray(hist.reshape(len(nodes), width, channels).transpose(0, 2, 1))
        mine = self.sides[0].work
        slot = mine.slots(nodes)
        inside = np.flatnonzero(slot >= 0)
        for place, values in enumerate(self.sums):
            total = np.bincount(slot[inside], weights=values[inside], minlength=len(nodes)).astype(np.int64)
            missing = total[:, None] - np.add.reduceat(shaped[:, place], starts[:-1], axis=1)
            shaped[:, place, starts[:-1] + side.work.binned.common] += missing
        return shaped

    def divide(self, splits: Sequence[TreeSplit], room: int) -> None:
        """Ask the owner of every feature which rows go left, and tell the others."""
        for place, side in enumerate(self.sides):
            width = len(side.work.starts) - 1
            own = [
                TreeSplit(s.node, s.feature - side.first, s.last_left, s.missing_left, s.left, s.right)
                for s in splits
                if side.first <= s.feature < side.first + width
            ]
            if not own:
                continue
            rows, left = side.work.goes_left(own)
            bits: Bytes = np.packbits(left).nbytes
            if place:
                self.wire.receive(side.party, len(own) * 12)
                self.wire.send(side.party, bits)
            for other in self.sides:
                if other is not side and other is not self.sides[0]:
                    self.wire.receive(other.party, bits + len(own) * 12)
                other.work.move(own, rows, left)


def check_columns(parties: Sequence[PartyTable], params: Boosting, protection: Protection) -> int:
    """Refuse tables and choices that do not go together; return the number of rows.

    Raises:
        TightropeError: naming the party or the choice.
    """
    if protection not in ("none", "paillier"):
        raise TightropeError(
            f"protection={protection!r} over columns: give none or paillier; masks are for rows."
        )
    num_rows = check_rows(parties[:1], params)
    for party in parties[1:]:
        if len(party.table) != num_rows:
            raise TightropeError(
                f"party {party.name!r} has {len(party.table)} rows and {parties[0].name!r} {num_rows}: "
                "the same rows "
                "in the same order are needed."
            )
    if protection == "paillier" and params.loss != "logistic":
        raise TightropeError("protection='paillier' takes the logistic loss, whose derivatives are bounded.")
    return num_rows


def train_over_columns(
    parties: Sequence[PartyTable],
    params: Boosting,
    *,
    features: Sequence[str] = (),
    protection: Protection = "none",
    key_bits: int = 2048,
    privacy: Privacy | None = None,
    wire: Wire | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Forest, CutTable, Wire]:
    """Train a forest over parties of columns.

    Args:
        parties: tables of the same rows in the same order; the first one has the labels.
        params: what is asked for.
        features: names of all features, party by party.
        protection: ``none``: the others see derivatives; ``paillier``: they see ciphertexts.
        key_bits: of the Paillier key, at least 2048.
        privacy: differential privacy, see `Privacy`.
        wire: where bytes are counted.
        progress: called with the number of finished trees.

    Raises:
        TightropeError: what was given does not go together.
        PartyGoneError: a party stopped answering.
    """
    num_rows = check_columns(parties, params, protection)
    wire = wire or Wire()
    if privacy is not None:
        check_private(parties)
    held = held_out(parties[0], params, by_place=True)
    bits = shared_bits(parties[:1], num_rows, params)
    base = base_of(parties[:1], [held], params, bits, plain_sum)
    sides, tables = _sides(parties, params, privacy)
    cuts = CutTable(sum((t.cuts for t in tables), ()), sum((t.missing for t in tables), ()))
    learner = Learner(
        parties[0], params, bits, num_rows, base, held, None if privacy is None else privacy.clip
    )
    counted = ~held & (learner.weights > 0)
    key = None
    if protection == "paillier":
        key = make_key(key_bits, fraction=bits, largest=parties[0].largest_weight, num_rows=num_rows)
    for side in sides[1:] if not counted.all() and params.channels == 3 else ():
        side.counted = counted
        wire.receive(side.party, -(-num_rows // 8), "agree")
    data = ColumnParties(params, sides, wire, learner, key)
    private = None if privacy is None else PrivateChoice(privacy, params)
    trees = boosted(params, cuts, bits, data, private, progress)
    names = tuple(features) or tuple(f"x{f}" for f in range(len(cuts.cuts)))
    return Forest(names, base, params.loss, trees, params.outputs), cuts, wire


def _sides(
    parties: Sequence[PartyTable], params: Boosting, privacy: Privacy | None
) -> tuple[list[ColumnSide], list[CutTable]]:
    """Cut every party's own features; nothing of that needs the others."""
    sides: list[ColumnSide] = []
    tables = cut_columns(parties, params, privacy)
    feature = first_bin = 0
    for party, cuts in zip(parties, tables, strict=True):
        sides.append(ColumnSide(party, work_of(party.table, cuts), feature, first_bin))
        feature, first_bin = feature + party.table.shape[1], first_bin + int(cuts.starts[-1])
    return sides, tables


def cut_columns(parties: Sequence[PartyTable], params: Boosting, privacy: Privacy | None) -> list[CutTable]:
    """Cut the features of every party, by public ranges where privacy asks for them."""
    if privacy is None:
        return [agree_cuts([party.table], bins=params.bins, summed=plain_sum) for party in parties]
    ranges = privacy.ranges_for(sum(party.table.shape[1] for party in parties))
    tables, feature = [], 0
    for party in parties:
        end = feature + party.table.shape[1]
        tables.append(range_cuts(ranges[feature:end], params.bins))
        feature = end
    return tables
