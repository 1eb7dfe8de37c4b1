"""A boosted forest: what training gives, the same for any number of parties; JSON, hash, answers."""

import hashlib
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import PlanFileError
from tightrope.core.files import read_file
from tightrope.core.json_text import check_values, parse_json

_MAX_NODES: Final = 2**17


class TreeNode(msgspec.Struct, frozen=True, array_like=True):
    """A split or a leaf.

    Attributes:
        feature: number of the feature; -1 in a leaf.
        cut: smaller values go left.
        missing_left: where rows without the feature go.
        left: number of the child; 0 in a leaf.
        right: number of the other child.
        value: what a leaf adds; 0 in a split.
    """

    feature: int
    cut: float = 0.0
    missing_left: bool = False
    left: int = 0
    right: int = 0
    value: float = 0.0


class Forest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Trees whose leaves are added up.

    Attributes:
        features: names, in order.
        base: what the sum begins with.
        loss: ``logistic`` (the sum is a log-odds), ``squared`` or ``softmax`` (a log-odds per class).
        trees: nodes, the root first; of several outputs in turn.
        outputs: sums per row.
    """

    features: tuple[str, ...]
    base: float
    loss: str
    trees: tuple[tuple[TreeNode, ...], ...]
    outputs: int = 1

    @property
    def hash(self) -> str:
        """SHA-256 of the forest as JSON: equal for equal forests, to the last bit of every leaf."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def margin(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """Add up the leaves that rows fall into.

        Args:
            table: ``[rows, features]``; NaN is missing.

        Returns:
            A sum per row; ``[rows, outputs]`` of several outputs.

        Example:
            >>> stump = (TreeNode(0, 2.0, False, 1, 2), TreeNode(-1, value=-1.0), TreeNode(-1, value=1.0))
            >>> Forest(("x",), 0.5, "squared", (stump,)).margin(np.array([[1], [2]], np.float32)).tolist()
            [-0.5, 1.5]
        """
        total = np.full((len(table), self.outputs), self.base)
        for number, tree in enumerate(self.trees):
            feature = np.array([node.feature for node in tree])
            cut = np.array([node.cut for node in tree], np.float32)
            to_left = np.array([node.missing_left for node in tree])
            child = np.array([(node.right, node.left) for node in tree])
            value = np.array([node.value for node in tree])
            at = np.zeros(len(table), np.intp)
            going = np.flatnonzero(feature[at] >= 0)
            while going.size:
                here = at[going]
                x = table[going, feature[here]]
                left = np.where(np.isnan(x), to_left[here], x < cut[here])
                at[going] = child[here, left.astype(np.intp)]
                going = going[feature[at[going]] >= 0]
            total[:, number % self.outputs] += value[at]
        return total if self.outputs > 1 else total[:, 0]

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """Answer for rows.

        Args:
            table: ``[rows, features]``; NaN is missing.

        Returns:
            The chance of label 1, a number, or ``[rows, classes]``: the chance of every class.

        Example:
            >>> Forest(("x",), 0.0, "logistic", ()).predict(np.zeros((1, 1), np.float32)).tolist()
            [0.5]
        """
        margin = self.margin(table)
        if self.loss == "squared":
            return margin
        return chances(margin) if self.loss == "softmax" else logistic(margin)

    def dump(self) -> bytes:
        """Write the forest as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def logistic(margin: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance of label 1 from log-odds.

    >>> logistic(np.array([-1000.0, 0.0])).tolist()
    [0.0, 0.5]
    """
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-margin)))


def chances(margin: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance of every class from ``[rows, classes]`` log-odds.

    >>> chances(np.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    powers = np.exp(margin - margin.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def load_forest(path: str) -> Forest:
    """Read a forest; nothing in the file is run.

    Raises:
        PlanFileError: the file is not a well-formed forest.
    """
    tree = parse_json(read_file(path), "forest")
    check_values(tree, "forest")
    try:
        forest = msgspec.convert(tree, Forest)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"forest: {error} ({path!r}).") from error
    if not 1 <= forest.outputs <= 1000 or len(forest.trees) % forest.outputs:
        raise PlanFileError(f"forest: {forest.outputs} outputs and {len(forest.trees)} trees ({path!r}).")
    if (forest.loss == "softmax") != (forest.outputs > 1):
        raise PlanFileError(f"forest: a {forest.loss} loss with {forest.outputs} outputs ({path!r}).")
    for number, nodes in enumerate(forest.trees):
        where = f"forest: $.trees[{number}]"
        if not 0 < len(nodes) <= _MAX_NODES:
            raise PlanFileError(f"{where}: {len(nodes)} nodes; a tree has 1 to {_MAX_NODES}.")
        for place, node in enumerate(nodes):
            inner = node.feature >= 0
            sound = (
                node.feature < len(forest.features) and place < node.left < len(nodes) and place < node.right
            )
            if node.feature < -1 or (inner and not (sound and node.right < len(nodes))):
                raise PlanFileError(
                    f"{where}[{place}]: its feature or children do not exist, or lie before it."
                )
    return forest
