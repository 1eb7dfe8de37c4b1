"""Which ops of an alignment may belong to another module, and whether anything may.

Idea        Layers that make the same ops are told apart by order alone, unless a class of torch runs
            them in an order that is known. A layer that ran oftener or less often than the others, or a
            layer's op that no layer made, says that something was mistaken; then no op of that forward
            is certain. A child of an unknown class may have made any op of the modules around it.
Guarantee   `proved` only where all modules are of classes of torch whose program is known.
Complexity  Linear in ops, and in modules times the names of their ops.
Gaps        A layer that is never called, while the module around calls its function itself, looks as if
            it were.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median_low

from tightrope.core import Doubt
from tightrope_trace.prior import has_program
from tightrope_trace.slots import Tree
from tightrope_trace.vocabulary import MADE, class_of, is_derived

_SHARED = frozenset({"linear", "addmm", "bmm", "baddbmm"})
"""Words of attention that layers of other classes have, too."""


class Likeness:
    """Modules that others of the same tree could stand for."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        names = sorted({word for words in tree.words if words for word in words.signature})
        bits = {name: 1 << number for number, name in enumerate(names)}
        kinds = {kind: 1 << number for number, kind in enumerate(dict.fromkeys(m.kind for m in tree.modules))}
        self._bits, self._kinds = bits, kinds
        made, held = [0] * len(tree.modules), [0] * len(tree.modules)
        for module in range(len(tree.modules) - 1, -1, -1):
            words = tree.words[module]
            if words is not None and not tree.below[module]:
                made[module] = sum(bits[word] for word in words.signature)
            held[module] |= kinds[tree.modules[module].kind]
            for child in tree.children[module]:
                made[module] |= made[child]
                held[module] |= held[child]
        self._alike, self._same = [0] * len(tree.modules), [0] * len(tree.modules)
        self._moved = [False] * len(tree.modules)
        for module in range(len(tree.modules)):
            if not tree.called[module]:
                continue
            ordered = tree.modules[module].kind == "Sequential" or has_program(*tree.shape(module))
            alike = 0 if ordered else _twice(made[child] for child in tree.children[module])
            same = 0 if ordered else _twice(held[child] for child in tree.children[module])
            for child in tree.children[module]:
                self._alike[child] = self._alike[module] | alike
                self._same[child] = self._same[module] | same
                kind = kinds[tree.modules[child].kind]
                self._moved[child] = self._moved[module] or bool(self._same[child] & kind)

    def doubt(self, module: int, word: str, *, layer: bool) -> Doubt:
        """Whether an op may be another module's that is like this one."""
        if not layer:
            return Doubt.ORDER if self._moved[module] else Doubt.NONE
        words = self._tree.words[module]
        known = words.signature if words is not None else frozenset[str]()
        made = {word} if word in known else known - _SHARED or known
        alike = any(self._alike[module] & self._bits[name] for name in made)
        return Doubt.ORDER if alike else Doubt.NONE


def _twice(masks: Iterable[int]) -> int:
    """Bits that are in more than one mask."""
    once = twice = 0
    for mask in masks:
        twice |= once & mask
        once |= mask
    return twice


def proved(tree: Tree) -> bool:
    """Whether all modules that call others are of classes of torch whose program is known."""
    return all(
        not tree.children[module]
        or tree.modules[module].kind == "Sequential"
        or has_program(*tree.shape(module))
        for module in range(len(tree.modules))
        if tree.called[module]
    ) and all(
        tree.words[module] is not None or tree.children[module] or not tree.called[module]
        for module in range(len(tree.modules))
    )


def complete(groups: Sequence[int], owners: Sequence[int], layers: Sequence[bool], tree: Tree) -> bool:
    """Whether every layer, light ones too, ran in every forward in which any did."""
    wanted = {
        module
        for module, known in enumerate(tree.words)
        if known is not None and known.signature and not tree.below[module] and tree.called[module]
    }
    found: dict[int, set[int]] = {}
    for group, owner, layer in zip(groups, owners, layers, strict=True):
        if layer:
            found.setdefault(group, set()).add(owner)
    return all(seen >= wanted for seen in found.values())


def uneven(
    words: Sequence[str], groups: Sequence[int], owners: Sequence[int], layers: Sequence[bool], tree: Tree
) -> list[bool]:
    """Tell for every op whether there are more or fewer like it than layers, or any layer ran unlike others.

    Args:
        words: bare names of the ops.
        groups: one number per op; a forward does not reach from one group into the next.
        owners: a module per op.
        layers: whether an op is one that its layer is known to make.
        tree: of modules.
    """
    found = [False] * len(words)
    makers: dict[str, list[int]] = {}
    for module, known in enumerate(tree.words):
        if known is not None and not tree.below[module] and tree.called[module]:
            for word in known.signature:
                makers.setdefault(word, []).append(module)
    for _, members in groupby(range(len(words)), key=groups.__getitem__):
        group = list(members)
        calls = Counter(owners[op] for op in group if layers[op] and words[op] in makers)
        weighted = [calls[layer] for word in MADE & makers.keys() for layer in makers[word] if calls[layer]]
        usual = median_low(weighted or [1])
        wrong = {
            word
            for word in MADE & makers.keys()
            for layer in makers[word]
            if calls[layer] != usual and not _attends(tree, layer)
        } & {words[op] for op in group}
        stolen = [op for op in group if words[op] in MADE and words[op] in makers and not layers[op]]
        last = max((op for op in group if layers[op]), default=-1)
        wrong |= {words[op] for op in stolen if op < last}  # behind all layers, weights are often used again
        ran = Counter(words[op] for op in group)
        extra = {word for word in makers if word not in MADE and ran[word] != len(makers[word])}
        for op in group:
            stray = words[op] in extra or (words[op] in makers and not layers[op])
            odd = stray and not _attends(tree, owners[op])
            found[op] = bool(wrong) or odd or op in stolen
    return found


def _attends(tree: Tree, module: int) -> bool:
    """Whether one call of a module makes several of its ops."""
    return class_of(tree.modules[module].kind) == "multiheadattention"


def hidden(owners: Sequence[int], layers: Sequence[bool], tree: Tree) -> list[bool]:
    """Tell for every op whether a module below its own may have made it: of an unknown class, no children."""
    around = set[int]()
    for module, words in enumerate(tree.words):
        leaf = module and tree.called[module] and not tree.below[module]
        if leaf and (words is None or is_derived(tree.modules[module].kind)):
            caller = tree.callers[module]
            while tree.modules[caller].kind == "Sequential" and caller:
                caller = tree.callers[caller]
            while caller not in around:
                around.add(caller)
                caller = tree.callers[caller]
    return [owner in around and not layer for owner, layer in zip(owners, layers, strict=True)]


def settled(
    owners: Sequence[int], words: Sequence[str], layers: Sequence[bool], placed: Sequence[Doubt],
    odd: Sequence[bool], runs: Sequence[range], tree: Tree,
) -> list[Doubt]:  # fmt: skip
    """Bring all doubts together: the place of an op comes before the order of its module.

    What stands beside a layer that ran unlike the others may be elsewhere, too.
    """
    likeness = Likeness(tree)
    odd = list(odd)
    for run in runs:
        beside = [op for op in (run.start - 1, run.stop) if 0 <= op < len(words)]
        if any(odd[op] and layers[op] for op in beside):
            for op in run:
                odd[op] = True
    found: list[Doubt] = []
    for op, word in enumerate(words):
        if odd[op] or placed[op] is Doubt.PLACE:
            found.append(Doubt.PLACE)
        else:
            found.append(likeness.doubt(owners[op], word, layer=layers[op]))
    return found
