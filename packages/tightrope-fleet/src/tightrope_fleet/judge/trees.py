"""Check a boosted forest against the rows that it was trained on, by trying every split.

Idea        Walk the trees in order. The rows of every node give its derivatives again, by the loss, in plain
            floats and without histograms. A leaf's value and the gain of every possible split follow; the one
            that was chosen must not be worse than any other, and a leaf must have had no reason to be split.
Guarantee   A forest that is accepted is what greedy boosting gives, within the tolerance that fixed-point
            sums need. Where features were cut at quantiles, only the cuts given are tried.
Complexity  O(trees x depth x features x rows x cuts): for tables of some hundred rows.
Gaps        Growth by leaf is checked for its splits, not for their order.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]


class JudgedNode(Protocol):
    """A node of a tree, as files have it."""

    feature: int
    cut: float
    missing_left: bool
    left: int
    right: int
    value: float


class Rules(Protocol):
    """What the forest was asked for."""

    depth: int
    leaves: int
    rate: float
    l2: float
    gamma: float
    child_weight: float
    min_rows: int
    loss: str
    classes: int


def forest_problems(
    trees: Sequence[Sequence[JudgedNode]],
    base: float,
    table: _Array,
    labels: _Array,
    rules: Rules,
    cuts: Sequence[_Array],
    *,
    weights: _Array | None = None,
    tolerance: float = 1e-6,
) -> list[str]:
    """List what is wrong with a forest; empty where it holds.

    Args:
        trees: nodes, the root first; of several classes in turn.
        base: what the sum of leaves begins with.
        table: ``[rows, features]`` of all parties together; NaN is missing.
        labels: of the rows.
        rules: what was asked for.
        cuts: allowed cuts per feature.
        weights: of the rows; 0 for those that are not trained on, such as held-out ones.
        tolerance: relative, of gains and leaves.
    """
    outputs = max(rules.classes, 1)
    scores, wrong = np.full((outputs, len(table)), base), []
    weight = np.ones(len(table)) if weights is None else weights
    derived: list[tuple[_Array, _Array]] = []
    for number, tree in enumerate(trees):
        if number % outputs == 0:
            derived = _derived(scores, labels, rules)
        score = scores[number % outputs]
        first, second = (one * weight for one in derived[number % outputs])
        waiting = [(0, np.arange(len(table)), 0)]
        seen = set()
        while waiting:
            place, rows, depth = waiting.pop()
            node, where = tree[place], f"tree {number}, node {place}"
            if place in seen or depth > rules.depth:
                wrong.append(f"{where}: reached twice, or deeper than {rules.depth}")
                continue
            seen.add(place)
            g, h, n = first[rows], second[rows], weight[rows] > 0
            best = max((_gain(table[rows, f], g, h, n, cut, to_left, rules) for f, some in enumerate(cuts)
                        for cut in [*some.tolist(), math.inf] for to_left in (False, True)),
                        default=-math.inf)  # fmt: skip
            if node.feature < 0:
                due = -g.sum() / (h.sum() + rules.l2) * rules.rate
                if abs(node.value - due) > tolerance * max(1.0, abs(due)):
                    wrong.append(f"{where}: the leaf is {node.value:g}; its rows give {due:g}")
                if (
                    depth < rules.depth
                    and not rules.leaves
                    and best > rules.gamma + tolerance * max(1.0, best)
                ):
                    wrong.append(f"{where}: a leaf, though a split gains {best:g}")
                score[rows] += node.value
                continue
            x = table[rows, node.feature]
            gain = _gain(x, g, h, n, node.cut, node.missing_left, rules)
            slack = tolerance * max(1.0, abs(best))
            if gain < best - slack or gain <= rules.gamma - slack:
                wrong.append(f"{where}: its split gains {gain:g}; the best one gains {best:g}")
            left = np.where(np.isnan(x), node.missing_left, x < node.cut)
            waiting += [(node.left, rows[left], depth + 1), (node.right, rows[~left], depth + 1)]
        if len(seen) != len(tree):
            wrong.append(f"tree {number}: {len(tree) - len(seen)} nodes are not reached")
    return wrong


def _derived(scores: _Array, labels: _Array, rules: Rules) -> list[tuple[_Array, _Array]]:
    """Both derivatives of the loss by every output."""
    if rules.loss == "squared":
        return [(scores[0] - labels, np.ones(len(labels)))]
    if rules.loss == "logistic":
        chance = [[1.0 / (1.0 + math.exp(-s)) for s in scores[0].tolist()]]
    else:
        powers = [
            [math.exp(s - top) for s, top in zip(row, scores.max(axis=0), strict=True)] for row in scores
        ]
        sums = [math.fsum(column) for column in zip(*powers, strict=True)]
        chance = [[p / total for p, total in zip(row, sums, strict=True)] for row in powers]
    right = [labels] if rules.loss == "logistic" else [labels == k for k in range(len(scores))]
    return [
        (np.array(row) - one, np.array(row) * (1.0 - np.array(row)))
        for row, one in zip(chance, right, strict=True)
    ]


def _gain(
    x: _Array, g: _Array, h: _Array, n: NDArray[np.bool_], cut: float, to_left: bool, rules: Rules
) -> float:
    left = np.where(np.isnan(x), to_left, x < cut)
    if min(int(n[side].sum()) for side in (left, ~left)) < rules.min_rows:
        return -math.inf
    parts = [(float(g[side].sum()), float(h[side].sum())) for side in (left, ~left)]
    if any(weight < rules.child_weight or weight <= 0 for _, weight in parts):
        return -math.inf
    whole = sum(g_ for g_, _ in parts) ** 2 / (sum(h_ for _, h_ in parts) + rules.l2)
    return sum(g_ * g_ / (h_ + rules.l2) for g_, h_ in parts) - whole


class LedgerLine(Protocol):
    """One expense of privacy."""

    tree: int
    what: str
    epsilon: float


def ledger_problems(lines: Sequence[LedgerLine], epsilon: float, trees: int, depth: int) -> list[str]:
    """List what is wrong with a ledger: something is missing or paid twice, or the sum is above epsilon."""
    due = {
        (tree, what) for tree in range(trees) for what in ("leaves", *(f"level {d}" for d in range(depth)))
    }
    paid = [(line.tree, line.what) for line in lines]
    wrong = [
        f"tree {tree}, {what}: paid {paid.count((tree, what))} times"
        for tree, what in sorted(due)
        if paid.count((tree, what)) != 1
    ]
    wrong += [f"tree {tree}, {what}: not part of the forest" for tree, what in sorted(set(paid) - due)]
    total = math.fsum(line.epsilon for line in lines)
    if any(not line.epsilon > 0 for line in lines) or total > epsilon * (1 + 1e-9):
        wrong.append(f"the ledger adds up to {total:g}; epsilon is {epsilon:g}")
    return wrong


def padded_bytes(trees: int, depth: int, leaves: int, bins: int, *, counted: bool = False) -> int:
    """Derive the bytes of a party again: one message after the other instead of a formula.

    Args:
        trees: of all outputs.
        depth: of each.
        leaves: of each, where it grows by leaf; else 0.
        bins: of all features.
        counted: whether rows are counted beside both derivatives.
    """
    each = 24 if counted else 16
    total = 0
    for _ in range(trees):
        rooms = [1] * (leaves - 1) if leaves else [1 << level for level in range(depth)]
        total += each * bins
        for step, room in enumerate(rooms):
            total += 24 * room + (each * bins * room if step + 1 < len(rooms) else 0)
        total += 8 * (2 * leaves - 1 if leaves else (1 << (depth + 1)) - 1)
    return total
