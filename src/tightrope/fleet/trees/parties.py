"""What one party does while trees grow: its rows, their derivatives, its histograms.

Histograms are sums of integers below 2^53 kept as floats, so every order of adding gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.fleet.trees.bins import BinnedRows, CutTable, Floats, Ints, Values, put_in_bins
from tightrope.fleet.trees.grow import TreeSplit
from tightrope.fleet.trees.params import Boosting

_EXACT: Final = 2.0**52


@dataclass(slots=True)
class PartyTable:
    """The rows or the columns of one party.

    Attributes:
        name: who it is.
        table: ``[rows, features]``; NaN is missing.
        labels: of the rows; None for a party that has columns only.
        fails_at: number of the message at which it stops answering, to rehearse that; None = it answers.
    """

    name: str
    table: Values
    labels: Floats | None = None
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
        if self.labels is not None:
            self.labels = np.ascontiguousarray(self.labels, np.float64)
            if self.labels.shape != (len(self.table),) or not np.isfinite(self.labels).all():
                raise TightropeError(
                    f"party {self.name!r}: {len(self.table)} rows need as many labels, all of them finite."
                )


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
    """Labels, the sum of leaves so far, and derivatives in fixed point."""

    labels: Floats
    params: Boosting
    bits: int
    num_rows: int
    score: Floats
    clip: float | None = None

    def derivatives(self) -> list[Floats]:
        """First and second derivatives of the loss, as whole numbers of 2^-bits."""
        p = self.params
        if p.loss == "logistic":
            chance = 1.0 / (1.0 + np.exp(-self.score))
            first, second = chance - self.labels, chance * (1.0 - chance)
        else:
            first, second = self.score - self.labels, np.ones_like(self.score)
        if p.hessian == "one":
            second = np.ones_like(first)
        if self.clip is not None:
            first = np.clip(first, -self.clip, self.clip)
        scaled = [np.rint(one * 2.0**self.bits) for one in (first, second)]
        if any(np.abs(one).max(initial=0.0) * self.num_rows >= _EXACT for one in scaled):
            raise TightropeError("derivatives grow beyond exact sums: lower the rate, or scale the labels.")
        return scaled


def bits_for(labels: float, num_rows: int, loss: str) -> int:
    """Choose the bits behind the point, so that sums over all rows are exact in 53 bits.

    >>> bits_for(1.0, 32_000, "logistic"), bits_for(100.0, 32_000, "squared")
    (32, 28)
    """
    rows = max(int(num_rows - 1).bit_length(), 1)
    whole = 0 if loss == "logistic" else max(int(np.ceil(np.log2(max(labels, 1.0)))) + 1, 0)
    return min(32, 51 - rows - whole)
