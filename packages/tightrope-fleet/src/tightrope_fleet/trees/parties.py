"""What one party does while trees grow: its rows, their derivatives, its histograms.

Histograms are sums of integers below 2^53 kept as floats, so every order of adding gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope_fleet.trees.bins import BinnedRows, CutTable, Floats, Ints, Values, put_in_bins
from tightrope_fleet.trees.forest import chances, logistic
from tightrope_fleet.trees.grow import TreeSplit
from tightrope_fleet.trees.params import Boosting

_EXACT: Final = 2.0**52
_LEAST_CHANCE: Final = 1e-300
_MOST_LOSS: Final = 2.0**22
"""Of one row: sums of 2^20 of them, in units of 2^-20, stay below 2^62."""


@dataclass(slots=True)
class PartyTable:
    """The rows or the columns of one party.

    Attributes:
        name: who it is.
        table: ``[rows, features]``; NaN is missing.
        labels: of the rows; None for a party that has columns only.
        weights: of the rows, from 0 on; None = 1 each. A row with weight 0 is not trained on.
        fails_at: number of the message at which it stops answering, to rehearse that; None = it answers.
    """

    name: str
    table: Values
    labels: Floats | None = None
    weights: Floats | None = None
    fails_at: int | None = None

    def __post_init__(self) -> None:
        self.table = np.ascontiguousarray(self.table, np.float32)
        if self.table.ndim != 2 or not self.table.size:
            raise TightropeError(
                f"party {self.name!r}: its table has the shape {self.table.shape}; rows and features "
                "are needed."
            )
        if np.isinf(self.table).any():
            row, column = np.argwhere(np.isinf(self.table))[0]
            raise TightropeError(
                f"party {self.name!r}: row {row}, feature {column} is infinite: give numbers, or NaN "
                "where missing."
            )
        for what in ("labels", "weights"):
            if (given := getattr(self, what)) is None:
                continue
            values = np.ascontiguousarray(given, np.float64)
            setattr(self, what, values)
            if values.shape != (len(self.table),) or not np.isfinite(values).all():
                raise TightropeError(
                    f"party {self.name!r}: {len(self.table)} rows need as many {what}, all of them finite."
                )
        if self.weights is not None and (self.weights < 0).any():
            raise TightropeError(f"party {self.name!r}: a weight is below 0: give numbers from 0 on.")

    @property
    def largest_label(self) -> float:
        """The largest label without its sign."""
        return 0.0 if self.labels is None else float(np.abs(self.labels).max(initial=0.0))

    @property
    def largest_weight(self) -> float:
        """The largest weight, at least 1."""
        return 1.0 if self.weights is None else max(1.0, float(self.weights.max(initial=0.0)))


@dataclass(slots=True)
class RowWork:
    """Rows in bins, and the node that each is in."""

    binned: BinnedRows
    starts: Ints
    last: Ints
    node: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.node = np.zeros(len(self.binned.dense), np.int32)

    def begin(self) -> None:
        """Put all rows into the root."""
        self.node[:] = 0

    def slots(self, nodes: Sequence[int]) -> NDArray[np.intp]:
        """Give every row the place of its node in the list, or -1."""
        table = np.full(max([int(self.node.max(initial=0)), *nodes]) + 1, -1, np.intp)
        table[list(nodes)] = np.arange(len(nodes))
        return table.take(self.node)

    def histogram(self, nodes: Sequence[int], sums: Sequence[Floats]) -> Ints:
        """Sum derivatives per node and bin, ``[nodes, len(sums), bins]``."""
        width, count = int(self.starts[-1]), len(nodes)
        out = np.zeros((count, len(sums), width), np.int64)
        if not count:
            return out
        slot = self.slots(nodes)
        inside = slot >= 0
        rows, bins = self.binned.entry_rows, self.binned.entry_bins
        if not inside.all():
            kept = np.flatnonzero(inside.take(rows))
            rows, bins = rows.take(kept), bins.take(kept)
        flat = bins if count == 1 else (slot * width).take(rows) + bins
        members = np.flatnonzero(inside)
        places = slot.take(members)
        common = self.starts[:-1] + self.binned.common
        for place, values in enumerate(sums):
            found = np.bincount(flat, weights=values.take(rows), minlength=count * width)
            hist = found.astype(np.float64, copy=False).reshape(count, width)  # of no rows they are int64
            total = np.bincount(places, weights=values.take(members), minlength=count)
            hist[:, common] += total[:, None] - np.add.reduceat(hist, self.starts[:-1], axis=1)
            out[:, place] = hist
        return out

    def goes_left(self, splits: Sequence[TreeSplit]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """List the rows in nodes that are split, and which of them go left."""
        size = max([int(self.node.max(initial=0)), *(split.node for split in splits)]) + 1
        feature = np.full(size, -1, np.intp)
        last, to_left = np.zeros(size, np.int64), np.zeros(size, bool)
        for split in splits:
            feature[split.node], last[split.node], to_left[split.node] = (
                split.feature,
                split.last_left,
                split.missing_left,
            )
        column = feature.take(self.node)
        rows = np.flatnonzero(column >= 0)
        column, at = column.take(rows), self.node.take(rows)
        width = self.binned.dense.shape[1]
        bins = self.binned.dense.reshape(-1).take(rows * width + column)
        missing = bins == self.last.take(column)
        left = np.where(missing, to_left.take(at), bins <= last.take(at))
        return rows, left

    def move(self, splits: Sequence[TreeSplit], rows: NDArray[np.intp], left: NDArray[np.bool_]) -> None:
        """Put rows into the children."""
        child = np.zeros((max(split.node for split in splits) + 1, 2), np.int32)
        for split in splits:
            child[split.node] = split.right, split.left
        self.node[rows] = child.reshape(-1).take(2 * self.node.take(rows) + left)


def work_of(table: Values, cuts: CutTable) -> RowWork:
    """Put rows into bins; ``last`` is the bin of missing values, out of reach where there is none."""
    last = np.array([len(c) + 1 for c in cuts.cuts], np.int64)
    return RowWork(put_in_bins(table, cuts), cuts.starts, last)


@dataclass(slots=True)
class Learner:
    """Labels, the sums of leaves so far, and derivatives in fixed point.

    Attributes:
        party: whose rows.
        params: what is asked for.
        bits: behind the point of sums.
        num_rows: of all parties.
        base: what sums begin with.
        held: rows that are not trained on, whose loss says when to stop.
        clip: bound on first derivatives.
    """

    party: PartyTable
    params: Boosting
    bits: int
    num_rows: int
    base: float
    held: NDArray[np.bool_]
    clip: float | None = None
    labels: Floats = field(init=False)
    score: Floats = field(init=False)
    weights: Floats = field(init=False)

    def __post_init__(self) -> None:
        assert self.party.labels is not None
        self.labels = self.party.labels
        self.score = np.full((len(self.labels), self.params.outputs), self.base)
        given = self.party.weights
        self.weights = np.ones(len(self.labels)) if given is None else given

    def derivatives(self) -> list[list[Floats]]:
        """Derive once a round.

        Returns:
            Per output the first and second derivatives of the loss as whole numbers of 2^-bits, and, where
            rows are counted, 1 for every row that is trained on.
        """
        p, found = self.params, list[list[Floats]]()
        factor = np.where(self.held, 0.0, self.weights)
        chance = self._chance()
        for output in range(p.outputs):
            first = chance[:, output] - self._target(output)
            second = np.ones_like(first)
            if p.loss != "squared" and p.hessian == "exact":
                second = chance[:, output] * (1.0 - chance[:, output])
            if self.clip is not None:
                first = np.clip(first, -self.clip, self.clip)
            scaled = [np.rint(one * factor * 2.0**self.bits) for one in (first, second)]
            if any(np.abs(one).max(initial=0.0) * self.num_rows >= _EXACT for one in scaled):
                raise TightropeError(
                    "derivatives grow beyond exact sums: lower the rate, or scale the labels."
                )
            found.append([*scaled, *([(factor > 0).astype(np.float64)] if p.channels == 3 else [])])
        return found

    def loss(self) -> Ints:
        """Sum the loss of rows that are held out, with their weights, as whole numbers of 2^-20."""
        chance, rows = self._chance(), np.arange(len(self.labels))
        if self.params.loss == "squared":
            each = (chance[:, 0] - self.labels) ** 2
        elif self.params.loss == "softmax":
            each = -np.log(np.maximum(chance[rows, self.labels.astype(np.intp)], _LEAST_CHANCE))
        else:
            right = np.where(self.labels > 0.5, chance[:, 0], 1.0 - chance[:, 0])
            each = -np.log(np.maximum(right, _LEAST_CHANCE))
        whole = np.rint(np.minimum(each * self.weights, _MOST_LOSS)[self.held] * 2.0**20)
        return np.array([whole.sum()], np.int64)

    def _chance(self) -> Floats:
        """What is compared with labels, per output."""
        if self.params.loss == "squared":
            return self.score
        return chances(self.score) if self.params.loss == "softmax" else logistic(self.score)

    def _target(self, output: int) -> Floats:
        return (self.labels == output).astype(np.float64) if self.params.loss == "softmax" else self.labels


def held_out(party: PartyTable, params: Boosting, *, by_place: bool = False) -> NDArray[np.bool_]:
    """Choose the rows that are held out, by a hash of each row: the same ones, however parties divide them.

    Args:
        party: its rows.
        params: the share, and whether any is held out.
        by_place: hash the number of the row instead, where other parties have other columns of it.
    """
    num_rows = len(party.table)
    if not params.stop:
        return np.zeros(num_rows, bool)
    labels = party.labels if party.labels is not None else np.zeros(num_rows)
    rows = (
        (str(place).encode() for place in range(num_rows))
        if by_place
        else (row.tobytes() + label.tobytes() for row, label in zip(party.table, labels, strict=True))
    )
    share = int(params.hold_out * 2**64)
    return np.array([int.from_bytes(blake2b(row, digest_size=8).digest(), "big") < share for row in rows])


def bits_for(labels: float, num_rows: int, loss: str, weight: float = 1.0) -> int:
    """Choose the bits behind the point, so that sums over all rows are exact in 53 bits.

    >>> bits_for(1.0, 32_000, "logistic"), bits_for(100.0, 32_000, "squared")
    (32, 28)
    """
    rows = max(int(num_rows - 1).bit_length(), 1)
    whole = max(int(np.ceil(np.log2(max(labels, 1.0)))) + 1, 0) if loss == "squared" else 0
    return min(32, 51 - rows - whole - int(np.ceil(np.log2(max(weight, 1.0)))))
