"""How well a profile and a module tree go together.

Idea        A model that ran uses its layers alike: each layer with weights runs once, or as often as the
            others where a step loops. So the calls found for each of them are compared with the median,
            and an op that only such layers make but none was found for counts against the match.
Guarantee   1 where every layer ran equally often and no such op is left over; 0 where none ran.
Complexity  Linear.
Gaps        A model that shares some layers, or leaves many out, looks like another one; one exactly twice
            as deep in the same layers looks like two steps. Layers of unknown classes are not counted.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median_low
from typing import Final

from tightrope_trace.slots import Slot, Tree
from tightrope_trace.vocabulary import MADE, class_of

UNPROVED: Final = 0.98
"""The best match of what only seems to fit."""


def match_of(words: Sequence[str], tree: Tree, slots: Sequence[Slot], path: Sequence[int]) -> float | None:
    """Measure how evenly the layers of a module tree ran.

    Args:
        words: bare names of the ops.
        tree: of modules.
        slots: that the path goes through.
        path: slot of every op.

    Returns:
        Between 0 and 1, or None where neither the tree has layers with weights nor the profile their ops.
    """
    layers = {
        module for module, known in enumerate(tree.words)
        if known is not None and not tree.below[module] and not known.signature.isdisjoint(MADE)
        and tree.called[module]
    }  # fmt: skip
    calls: Counter[int] = Counter()
    lost = 0
    for word, number in zip(words, path, strict=True):
        if word in MADE:
            owner = _owner(word, tree, slots[number])
            calls[owner] += owner in layers
            lost += owner < 0
    if not layers:
        return 0.0 if lost else None
    usual = median_low([calls[layer] for layer in layers if calls[layer]] or [1])
    for layer in layers:
        if calls[layer] and class_of(tree.modules[layer].kind) == "multiheadattention":
            calls[layer] = usual  # it makes several such ops in one call
    found = sum(min(calls[layer], usual) for layer in layers)
    return found / (sum(max(calls[layer], usual) for layer in layers) + lost)


def _owner(word: str, tree: Tree, slot: Slot) -> int:
    """The layer that an op was found for: of its slot, or lent to the module around it; -1 for none."""
    if slot.place == "gap":
        return tree.lent(slot).get(word, -1)
    known = tree.words[slot.module]
    return slot.module if known is None or word in known.signature else -1
