"""Cut features into bins that do not depend on who holds which row.

Idea        A feature with few distinct values has a bin per value; another one is cut at exact quantiles.
            Both are functions of the union of all rows: distinct values are put together, and a quantile is
            found by bisection over the 32 bits of a float, with the number of values below summed over the
            parties. So every split of the rows gives the same cuts, and with them the same forest. Histograms
            are ragged: a binary feature costs two bins, not 255.
Guarantee   Cuts are equal for any number of parties. The bisection shows the server counts of the union
            alone; the distinct values of features that have few are shown as they are, without whose they
            are.
Complexity  O(n log n) per feature once; 32 sums of ``bins`` words per feature that is cut at quantiles.
Gaps        Quantiles count every row once: no weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float32]
Summed: TypeAlias = Callable[[list[NDArray[np.uint64]]], NDArray[np.uint64]]
Gathered: TypeAlias = Callable[[list[list[NDArray[np.uint64]]]], list[list[NDArray[np.uint64]]]]

ROUNDS: Final = 32
"""Of bisection: the bits of a float."""


@dataclass(frozen=True, slots=True)
class CutTable:
    """Where every feature is cut; a value goes left of the cuts above it.

    Attributes:
        cuts: ascending, per feature.
        missing: whether any row lacks the feature; such rows have a bin of their own, the last.
    """

    cuts: tuple[Values, ...]
    missing: tuple[bool, ...]

    @property
    def widths(self) -> Ints:
        """Bins of every feature."""
        return np.array([len(c) + 1 + m for c, m in zip(self.cuts, self.missing, strict=True)], np.int64)

    @property
    def starts(self) -> Ints:
        """First bin of every feature in a flat histogram, and the number of all bins."""
        return np.concatenate([[0], np.cumsum(self.widths)]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BinnedRows:
    """Rows as bins, dense for finding a row's way and sparse for sums.

    Attributes:
        dense: bin of every row and feature, ``[rows, features]``.
        common: the most frequent bin of every feature, which sums are not made of: it is what the others
        lack. entry_rows: row of every other entry, ascending.
        entry_bins: its flat bin.
    """

    dense: NDArray[np.uint16]
    common: Ints
    entry_rows: NDArray[np.intp]
    entry_bins: NDArray[np.intp]


def agree_cuts(
    tables: Sequence[Values], *, bins: int, summed: Summed, gathered: Gathered | None = None
) -> CutTable:
    """Find the cuts of the union of several tables of the same features.

    Args:
        tables: ``[rows, features]`` per party; NaN is missing.
        bins: per feature, at most, the one for missing values aside.
        summed: adds one vector per party, masked or not.
        gathered: gives the distinct values of all parties, where some are in other processes.

    Raises:
        TightropeError: parties have other numbers of features.

    Example:
        >>> from tightrope_fleet.secure import plain_sum
        >>> one, two = np.array([[1], [3]], np.float32), np.array([[2]], np.float32)
        >>> agree_cuts([one, two], bins=9, summed=plain_sum).cuts[0].tolist()
        [2.0, 3.0]
    """
    if len({table.shape[1] for table in tables}) != 1:
        raise TightropeError(
            f"parties have {', '.join(str(table.shape[1]) for table in tables)} features: the same "
            "ones, in the "
            "same order, are needed."
        )
    width = tables[0].shape[1]
    ordered = [[_ordered(table[:, f]) for f in range(width)] for table in tables]
    present = summed([np.array([len(keys) for keys in party], np.uint64) for party in ordered])
    num_rows = int(summed([np.array([len(table)], np.uint64) for table in tables])[0])
    distinct = [[_shown(np.unique(keys), bins) for keys in party] for party in ordered]
    every = distinct if gathered is None else gathered(distinct)
    union = [_few([party[f] for party in every], bins) for f in range(width)]
    many = [f for f in range(width) if union[f] is None]
    quantiles = _quantiles([[party[f] for f in many] for party in ordered], present[many], bins, summed)
    cuts, found = [], iter(quantiles)
    for values in union:
        cuts.append(_values(np.unique(next(found)) if values is None else values[1:]))
    return CutTable(tuple(cuts), tuple(bool(p < num_rows) for p in present))


def range_cuts(ranges: Sequence[tuple[float, float]], bins: int) -> CutTable:
    """Cut public ranges into equal bins: what no row changes, as differential privacy needs."""
    cuts = tuple(np.linspace(low, high, bins + 1)[1:-1].astype(np.float32) for low, high in ranges)
    return CutTable(tuple(np.unique(c) for c in cuts), (False,) * len(cuts))


def put_in_bins(table: Values, cuts: CutTable) -> BinnedRows:
    """Write rows as bins."""
    num_rows, width = table.shape
    dense = np.empty((num_rows, width), np.uint16)
    common = np.zeros(width, np.int64)
    starts = cuts.starts
    for f in range(width):
        column = table[:, f]
        bins = np.searchsorted(cuts.cuts[f], column, side="right")
        bins[np.isnan(column)] = len(cuts.cuts[f]) + 1
        if num_rows and bins.max(initial=0) >= cuts.widths[f]:
            raise TightropeError(
                f"feature {f} has missing values in row {int(bins.argmax())}, and none were expected."
            )
        dense[:, f] = bins
        common[f] = np.bincount(bins, minlength=1).argmax() if num_rows else 0
    rows, features = np.nonzero(dense != common[None, :])
    flat = starts[features] + dense[rows, features]
    return BinnedRows(dense, common, rows.astype(np.intp), flat.astype(np.intp))


def _ordered(column: Values) -> NDArray[np.uint64]:
    """Sort a feature's values as keys: unsigned integers in the order of the floats."""
    values = np.sort(column[~np.isnan(column)].astype(np.float32)) + np.float32(0)  # -0 becomes 0
    bits = values.view(np.uint32).astype(np.uint64)
    return np.where(bits >> 31 == 1, 0xFFFFFFFF - bits, bits + 0x80000000)


def _values(keys: NDArray[np.uint64]) -> Values:
    bits = np.where(keys >= 0x80000000, keys - 0x80000000, 0xFFFFFFFF - keys)
    return bits.astype(np.uint32).view(np.float32)


def _shown(keys: NDArray[np.uint64], bins: int) -> NDArray[np.uint64]:
    """What others see of distinct values: of too many, that they are too many."""
    return keys if len(keys) <= bins else np.zeros(bins + 1, np.uint64)


def _few(parties: list[NDArray[np.uint64]], bins: int) -> NDArray[np.uint64] | None:
    """Put distinct values together; None where they are more than bins."""
    if any(len(keys) > bins for keys in parties):
        return None
    together = np.unique(np.concatenate(parties))
    return together if len(together) <= bins else None


def _quantiles(
    parties: list[list[NDArray[np.uint64]]], present: NDArray[np.uint64], bins: int, summed: Summed
) -> list[NDArray[np.uint64]]:
    """Bisect for every quantile of every feature at once: the smallest key with enough values up to it."""
    if not len(present):
        return []
    counts_all = present[:, None].astype(np.int64)
    ranks = np.concatenate([np.ones_like(counts_all), -(-np.arange(1, bins) * counts_all // bins)], axis=1)
    low = np.zeros(ranks.shape, np.int64)
    high = np.full(ranks.shape, 0xFFFFFFFF, np.int64)
    for _ in range(ROUNDS):
        middle = (low + high) // 2
        counts = []
        for party in parties:
            below = [
                np.searchsorted(keys, m.astype(np.uint64), side="right")
                for keys, m in zip(party, middle, strict=True)
            ]
            counts.append(np.array(below, np.uint64).reshape(-1))
        enough = summed(counts).reshape(ranks.shape).astype(np.int64) >= ranks
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle + 1)
    return [row[row > row[0]].astype(np.uint64) for row in high]  # a cut at the least value divides nothing
