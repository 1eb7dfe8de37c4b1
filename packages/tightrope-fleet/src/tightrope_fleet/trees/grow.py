"""Grow one tree from sums of derivatives: level by level, or the best leaf first.

Idea        Whoever holds the data answers three questions: the histogram of some nodes, where the rows of a
            split go, and what a leaf is worth in the end. The grower sees histograms only, in exact integers.
            Of two children the one with less weight is asked for; the other is the parent without it.
Source      Chen and Guestrin, XGBoost (KDD 2016); Ke et al., LightGBM (NeurIPS 2017), growth by leaf; Li et
            al., FedTree (MLSys 2023), histograms from parties.
Guarantee   The tree is a function of the sums alone: equal sums give equal trees, to the last bit. The split
            is the best of all candidates; of equal ones the first feature and cut, and missing values to the
            right.
Complexity  O(nodes x bins) time beside what the parties do.
Gaps        One feature per split; no categories, no sampling of rows or features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope_fleet.trees.bins import CutTable, Floats, Ints
from tightrope_fleet.trees.forest import TreeNode
from tightrope_fleet.trees.params import Boosting


@dataclass(frozen=True, slots=True)
class TreeSplit:
    """A node and how it is split.

    Attributes:
        node: its number.
        feature: which feature.
        last_left: last bin that goes left.
        missing_left: where rows without the feature go.
        left: number of the left child.
        right: number of the right child.
    """

    node: int
    feature: int
    last_left: int
    missing_left: bool
    left: int
    right: int


class Histograms(Protocol):
    """What grows a tree asks of those who hold the data."""

    def histogram(self, nodes: Sequence[int], room: int) -> Ints:
        """Sum per node, ``[nodes, channels, bins]``; messages have the room of ``room`` nodes."""

    def divide(self, splits: Sequence[TreeSplit], room: int) -> None:
        """Move rows to the children."""


Chooser: TypeAlias = Callable[[Floats], NDArray[np.intp]]
"""Picks one candidate per node from gains ``[nodes, candidates]``; invalid ones are -inf."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every split that the cuts allow, as places in a flat histogram.

    Attributes:
        bins: flat number of the last bin that goes left.
        features: its feature.
        first: first flat bin of that feature.
        missing: flat bin of rows without the feature; that of bin 0 where there is none.
        to_left: whether such rows go left.
    """

    bins: Ints
    features: Ints
    first: Ints
    missing: Ints
    to_left: NDArray[np.bool_]


def candidates_of(cuts: CutTable) -> Candidates:
    """List candidates, those with missing values to the right first."""
    starts, rows = cuts.starts, []
    for to_left in (False, True):
        for f, values in enumerate(cuts.cuts):
            last = starts[f + 1] - 1
            if to_left and not cuts.missing[f]:
                continue
            most = len(values) + (cuts.missing[f] and not to_left)
            rows += [(starts[f] + c, f, starts[f], last, to_left) for c in range(most)]
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Candidates(columns[0], columns[1], columns[2], columns[3], columns[4].astype(bool))


_NEVER: Final = -np.inf


@dataclass(slots=True)
class Grower:
    """The server's side of one forest: what it knows besides the sums.

    Attributes:
        params: what is asked for.
        cuts: where features are cut.
        bits: behind the point of the sums.
        choose: picks candidates; the best by default.
        worth: value of a leaf from its sums, before the rate; ``-G / (H + l2)`` by default.
    """

    params: Boosting
    cuts: CutTable
    bits: int
    choose: Chooser | None = None
    worth: Callable[[Floats, Floats], Floats] | None = None
    _known: Candidates = field(init=False)

    def __post_init__(self) -> None:
        self._known = candidates_of(self.cuts)

    def tree(self, data: Histograms) -> tuple[TreeNode, ...]:
        """Grow one tree."""
        grown = _Grown(self, data)
        grown.begin()
        if self.params.leaves:
            grown.by_leaf()
        else:
            grown.by_level()
        return grown.finish()

    def best(self, hist: Ints) -> tuple[NDArray[np.intp], Floats, Ints]:
        """Pick a candidate per node: its number, its gain and the sums of its left child."""
        known, p = self._known, self.params
        scale = 2.0**-self.bits
        padded = np.concatenate([np.zeros((*hist.shape[:2], 1), np.int64), hist.cumsum(axis=2)], axis=2)
        left = padded[:, :, known.bins + 1] - padded[:, :, known.first]
        if known.to_left.any():
            left += np.where(known.to_left, hist[:, :, known.missing], 0)
        total = padded[:, :, self.cuts.starts[1]]
        gl, hl = left[:, 0] * scale, left[:, 1] * scale
        g, h = total[:, 0, None] * scale, total[:, 1, None] * scale
        gr, hr = g - gl, h - hl
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = gl * gl / (hl + p.l2) + gr * gr / (hr + p.l2) - g * g / (h + p.l2)
        if self.choose is None:
            sound = (hl >= p.child_weight) & (hr >= p.child_weight) & (hl > 0) & (hr > 0)
            if p.channels == 3:
                sound &= (left[:, 2] >= p.min_rows) & (total[:, 2, None] - left[:, 2] >= p.min_rows)
            gain = np.where(sound, gain, _NEVER)
        if not gain.shape[1]:
            none = np.zeros(len(hist), np.intp)
            return none, np.full(len(hist), _NEVER), np.zeros(hist.shape[:2], np.int64)
        picked = gain.argmax(axis=1) if self.choose is None else self.choose(gain)
        rows = np.arange(len(hist))
        return picked, gain[rows, picked], left[rows, :, picked]


@dataclass(slots=True)
class _Open:
    """A leaf that may still be split."""

    node: int
    depth: int
    hist: Ints
    picked: int = 0
    gain: float = _NEVER
    left: Ints = field(default_factory=lambda: np.zeros(2, np.int64))


@dataclass(slots=True)
class _Grown:
    """A tree while it grows."""

    grower: Grower
    data: Histograms
    splits: dict[int, TreeSplit] = field(default_factory=dict)
    sums: list[Ints] = field(default_factory=list)
    open: list[_Open] = field(default_factory=list)

    def begin(self) -> None:
        hist = self.data.histogram([0], 1)[0]
        self.sums.append(hist[:, : self.grower.cuts.starts[1]].sum(axis=1))
        self.open = self._rated([_Open(0, 0, hist)])

    def by_level(self) -> None:
        p = self.grower.params
        for depth in range(p.depth):
            chosen = [leaf for leaf in self.open if self._worthwhile(leaf)]
            self.open = self._expand(chosen, 2**depth, last=depth == p.depth - 1)

    def by_leaf(self) -> None:
        p = self.grower.params
        for left in range(p.leaves - 1, 0, -1):
            able = [leaf for leaf in self.open if self._worthwhile(leaf) and leaf.depth < p.depth]
            best = [max(able, key=lambda leaf: (leaf.gain, -leaf.node))] if able else []
            self.open = [leaf for leaf in self.open if leaf not in best]
            self.open += self._expand(best, 1, last=left == 1)

    def finish(self) -> tuple[TreeNode, ...]:
        grower, scale = self.grower, 2.0**-self.grower.bits
        sums = np.array(self.sums)[:, :2] * scale
        g, h = sums.astype(np.float64).T
        values = -g / (h + grower.params.l2) if grower.worth is None else grower.worth(g, h)
        nodes = []
        for node in range(len(self.sums)):
            split = self.splits.get(node)
            if split is None:
                nodes.append(TreeNode(-1, value=float(values[node] * grower.params.rate) + 0.0))
                continue
            cuts = grower.cuts.cuts[split.feature]
            cut = (
                float(cuts[split.last_left])
                if split.last_left < len(cuts)
                else float(np.finfo(np.float32).max)
            )
            nodes.append(TreeNode(split.feature, cut, split.missing_left, split.left, split.right))
        return tuple(nodes)

    def _worthwhile(self, leaf: _Open) -> bool:
        return leaf.gain > self.grower.params.gamma if self.grower.choose is None else np.isfinite(leaf.gain)

    def _rated(self, leaves: list[_Open]) -> list[_Open]:
        if leaves:
            picked, gains, left = self.grower.best(np.array([leaf.hist for leaf in leaves]))
            for place, leaf in enumerate(leaves):
                leaf.picked, leaf.gain, leaf.left = int(picked[place]), float(gains[place]), left[place]
        return leaves

    def _expand(self, leaves: list[_Open], room: int, *, last: bool) -> list[_Open]:
        """Split leaves; return their children with histograms, or nothing where no split can follow."""
        known, splits, small = self.grower._known, [], []
        for leaf in leaves:
            c, at = leaf.picked, len(self.sums)
            split = TreeSplit(
                leaf.node,
                int(known.features[c]),
                int(known.bins[c] - known.first[c]),
                bool(known.to_left[c]),
                at,
                at + 1,
            )
            self.sums += [leaf.left, self.sums[leaf.node] - leaf.left]
            self.splits[leaf.node] = split
            splits.append(split)
            small.append(at if leaf.left[1] <= self.sums[at + 1][1] else at + 1)
        self.data.divide(splits, room)
        if last:
            return []
        found = self.data.histogram(small, room)
        children = []
        for leaf, split, node, hist in zip(leaves, splits, small, found, strict=True):
            rest = leaf.hist - hist
            left, right = (hist, rest) if node == split.left else (rest, hist)
            children += [
                _Open(split.left, leaf.depth + 1, left),
                _Open(split.right, leaf.depth + 1, right),
            ]
        return self._rated(children)
