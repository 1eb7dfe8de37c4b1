"""Binary tree LSTM (Tai et al., 2015, section 3.2): the graph follows a tree that comes with the batch.

    name       scale  call                                batch           parameters
    tree_lstm  bench  TreeLstm(width=192, num_classes=5)  96 leaves x 32     481,733
    tree_lstm  test   TreeLstm(width=16, num_classes=5)   8 leaves x 2         3,541

The tree arrives as a table of merges and is walked by recursion in Python, so control flow depends
on data and no single graph describes the net. ``random_merges`` draws another tree for the next
training step.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.case import Scale, entry

Tree = int | tuple["Tree", "Tree"]
"""A leaf's number, or two subtrees."""


def random_merges(num_leaves: int) -> Tensor:
    """Draw a binary tree: row ``i`` holds the two nodes whose parent is node ``num_leaves + i``."""
    roots = list(range(num_leaves))
    rows: list[tuple[int, int]] = []
    for node in range(num_leaves, 2 * num_leaves - 1):
        position = int(torch.randint(len(roots) - 1, ()))
        rows.append((roots[position], roots[position + 1]))
        roots[position : position + 2] = [node]
    return torch.tensor(rows)


def _tree(merges: Tensor) -> Tree:
    rows: list[list[int]] = merges.tolist()
    nodes: list[Tree] = list(range(len(rows) + 1))
    for left, right in rows:
        nodes.append((nodes[left], nodes[right]))
    return nodes[-1]


class TreeLstm(nn.Module):
    """Encode a tree bottom-up and classify its root; ``forward(leaves, merges, target)`` is the loss.

    ``leaves`` is (leaves x batch x width), ``merges`` a table as `random_merges` draws it, shared by
    the batch, and ``target`` holds a class per element of the batch.
    """

    def __init__(self, *, width: int, num_classes: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, num_classes)

    def encode(self, tree: Tree, leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden and the cell state (batch x width) of a tree's root."""
        if isinstance(tree, int):
            i, o, u = self.leaf(leaves[tree]).chunk(3, -1)
            cell = i.sigmoid() * u.tanh()
            return o.sigmoid() * cell.tanh(), cell
        (left, left_cell), (right, right_cell) = self.encode(tree[0], leaves), self.encode(tree[1], leaves)
        i, o, u, keep_left, keep_right = self.merge(torch.cat((left, right), -1)).chunk(5, -1)
        cell = i.sigmoid() * u.tanh() + keep_left.sigmoid() * left_cell + keep_right.sigmoid() * right_cell
        return o.sigmoid() * cell.tanh(), cell

    def forward(self, leaves: Tensor, merges: Tensor, target: Tensor) -> Tensor:
        hidden, _ = self.encode(_tree(merges), leaves)
        return functional.cross_entropy(self.head(hidden), target)


def _tree_lstm(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    num_leaves, batch, width = (96, 32, 192) if scale == "bench" else (8, 2, 16)
    leaves = torch.randn(num_leaves, batch, width)
    inputs = leaves, random_merges(num_leaves), torch.randint(5, (batch,))
    return TreeLstm(width=width, num_classes=5), inputs


ENTRIES = (entry("tree_lstm", _tree_lstm, "dynamic"),)
