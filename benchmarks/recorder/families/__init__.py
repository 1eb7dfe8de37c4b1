"""Families of nets, drawn by number: each function makes a net and what it is trained with."""

import random
from typing import Final

import torch

from benchmarks.recorder.families.case import Build, Case
from benchmarks.recorder.families.embeddings import ranged_recommender, recommender
from benchmarks.recorder.families.graphs import graph
from benchmarks.recorder.families.plain import plain
from benchmarks.recorder.families.shared import experts, loops, siamese
from benchmarks.recorder.families.transformers import own_transformer, torch_transformer
from benchmarks.recorder.families.trees import permuted_tree, tree

FAMILIES: Final[dict[str, Build]] = {
    "plain": plain,
    "torch_transformer": torch_transformer,
    "own_transformer": own_transformer,
    "recommender": recommender,
    "ranged_recommender": ranged_recommender,
    "graph": graph,
    "experts": experts,
    "siamese": siamese,
    "loops": loops,
    "tree": tree,
    "permuted_tree": permuted_tree,
}


def draw(family: str, seed: int) -> Case:
    """Make one net of a family; the same seed makes the same net."""
    torch.manual_seed(seed)
    return FAMILIES[family](random.Random(f"{family} {seed}"))


__all__ = ["FAMILIES", "Case", "draw"]
