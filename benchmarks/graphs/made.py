"""Graphs with planted labels."""

import numpy as np

from tightrope_ranks.values.graphs import NodeGraph


def clustered(
    seed: int,
    *,
    num: int = 4000,
    clusters: int = 8,
    classes: int = 4,
    degree: float = 10.0,
    mixed: float = 0.05,
    columns: int = 64,
    noise: float = 3.0,
) -> NodeGraph:
    """Draw a graph whose clusters have few edges between them; labels are mixed within each cluster.

    Args:
        seed: of everything.
        num: of nodes.
        clusters: how many.
        classes: of labels: neighbours have the same more often.
        degree: edges into a node.
        mixed: part of the edges that leave their cluster.
        columns: of the features.
        noise: of the features, around one centre a class.
    """
    rng = np.random.default_rng(seed)
    cluster, label = np.arange(num) * clusters // num, rng.integers(0, classes, num)
    half = int(num * degree / 2)
    source, target = rng.integers(0, num, half), np.empty(half, np.int64)
    anywhere = rng.random(half) < mixed
    home = np.where(anywhere, rng.integers(0, clusters, half), cluster[source])
    alike = np.where(rng.random(half) < 0.6, label[source], rng.integers(0, classes, half))
    for home_of in range(clusters):
        for kind in range(classes):
            chosen = (home == home_of) & (alike == kind)
            target[chosen] = rng.choice(np.flatnonzero((cluster == home_of) & (label == kind)), chosen.sum())
    edges = np.concatenate([np.stack([source, target]), np.stack([target, source])], 1)
    edges = np.unique(edges[:, edges[0] != edges[1]], axis=1)
    features = rng.normal(0, 1, (classes, columns))[label] + noise * rng.normal(0, 1, (num, columns))
    draw = rng.random(num)
    return NodeGraph(
        edges, features.astype(np.float32), label, draw < 0.5, (draw >= 0.5) & (draw < 0.6), draw >= 0.6
    )
