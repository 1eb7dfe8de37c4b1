"""Which module ran which op, from names and order alone.

    modules   net ( conv | bn | relu | block ( fc | drop ) )
    slots     net.0  conv  net.1  bn  net.2  relu  net.3  block.0  fc  block.1  drop  block.2  net.4
    ops          conv2d -> conv    batch_norm -> bn    add -> block.2 ...

Idea        Every leaf module is a slot, and every stretch between two children is a slot of the module
            around them. Ops are assigned to slots by one global alignment (Viterbi): the cheapest path
            through the slots, where an op costs little in a slot that makes such ops and much elsewhere,
            leaving out a leaf costs, and jumping (a module that runs twice, or out of order) costs more.
            Costs are per type: what torch's own modules call is known, what others call is anything that
            nobody claims. A first alignment shows in which order the children of a class run; the
            second one has its slots in that order. A child that runs again is lent to its parent.
Source      Replaces the greedy cursor of Hotline (Snider, Chevalier, Pekhimenko, MLSys 2023).
Guarantee   The path is the cheapest one under these costs.
Complexity  O(ops x slots) time and bytes.
Gaps        Modules that make the same ops one after another, in an order other than that of their
            definition, are told apart by nothing. Modules that share weights keep their first path.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tightrope.core import Module
from tightrope.native.align import cheapest_path

KNOWN: Final[dict[str, frozenset[str]]] = {
    name: frozenset(ops.split())
    for name, ops in {
        "linear": "linear addmm",
        "conv": "conv1d conv2d conv3d convolution",
        "projection": "addmm",
        "rmsnorm": "rms_norm to pow mean add rsqrt mul",
        "convtranspose": "conv_transpose1d conv_transpose2d conv_transpose3d",
        "batchnorm": "batch_norm",
        "layernorm": "layer_norm",
        "groupnorm": "group_norm",
        "instancenorm": "instance_norm",
        "relu": "relu clamp_min hardtanh leaky_relu prelu relu6",
        "hardtanh": "hardtanh",
        "gelu": "gelu",
        "silu": "silu",
        "sigmoid": "sigmoid",
        "tanh": "tanh",
        "softmax": "softmax log_softmax",
        "embedding": "embedding",
        "embeddingbag": "embedding_bag",
        "dropout": "dropout",
        "maxpool": "max_pool1d max_pool2d max_pool3d",
        "avgpool": "avg_pool2d adaptive_avg_pool2d avg_pool1d mean adaptive_avg_pool1d",
        "flatten": "flatten",
        "upsample": "upsample_nearest2d upsample_bilinear2d",
        "lstm": "lstm",
        "gru": "gru",
        "rnn": "rnn_tanh rnn_relu",
        "lstmcell": "lstm_cell",
        "grucell": "gru_cell",
        "multiheadattention": "_native_multi_head_attention scaled_dot_product_attention linear",
        "loss": "cross_entropy_loss nll_loss mse_loss binary_cross_entropy_with_logits l1_loss kl_div",
        "identity": "",
    }.items()
}
"""What torch's own modules call, by class name in lower case without digits and endings such as 2d."""

_GLUE_NAMES: Final = (
    "view reshape contiguous transpose permute t to _to_copy empty zeros zero_ clone unsqueeze squeeze "
    "expand select slice detach detach_ alias size narrow chunk split unbind add_ copy_ zeros_like "
    "result_type full lift_fresh is_floating_point is_nonzero item _local_scalar_dense as_strided ones"
)
GLUE: Final = frozenset(_GLUE_NAMES.split())
"""Ops that any module may make beside the ones it is known for."""

AROUND: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "batchnorm": (frozenset({"add_"}), frozenset()),
    "projection": (frozenset({"view"}), frozenset({"view"})),
}
"""What modules call before and after the op that they are known for."""

_MISS, _GLUE, _FREE, _FREE_GLUE, _PARENT, _LAST = 1200, 350, 60, 150, 100, 140
_STOLEN, _STOLEN_LIGHT, _LENT, _LENT_LIGHT = 800, 150, 250, 30
_SKIP_KNOWN, _SKIP_LIGHT, _SKIP_FREE, _BACK, _FAR = 300, 30, 100, 50, 700
_EASE: Final = (6, 2)
"""Leaving leaves out costs this much less while the order of children is being learned."""
_LIGHT_NAMES: Final = "relu hardtanh gelu silu sigmoid tanh softmax dropout maxpool avgpool flatten"
_LIGHT: Final = frozenset(_LIGHT_NAMES.split())
"""Classes without weights: often left out by their parent, or used twice."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """One place where ops may go: a leaf module, or a stretch of a module between two children."""

    module: int
    leaf: bool
    family: int
    known: frozenset[str] | None
    skip: int
    last: bool = False
    around: bool = False


def class_of(kind: str) -> str:
    """Bring class names together: ``Conv2d`` and ``Conv1d`` are ``conv``."""
    if kind == "Conv1D":  # of transformers: a matrix product between two views
        return "projection"
    name = kind.lower().replace("_", "").replace("adaptive", "")
    for ending in ("1d", "2d", "3d"):
        name = name.removesuffix(ending)
    if name.endswith(("loss", "crossentropy")):
        return "loss"
    return next((known for known in ("batchnorm", "rmsnorm") if name.endswith(known)), name)


def plain(name: str) -> str:
    """The bare name of an op: ``aten::relu_`` is ``relu``.

    Example:
        >>> plain("aten::relu_"), plain("aten::_unsafe_view")
        ('relu', '_unsafe_view')
    """
    bare = name.rpartition("::")[2]
    return bare if bare in GLUE else bare.removesuffix("_")


def align(names: Sequence[str], modules: Sequence[Module], *, native: bool = True) -> list[int]:
    """Find the module of every op.

    Args:
        names: of outermost ops of a forward pass, in the order in which they ran.
        modules: the module tree in order of definition, root first.
        native: whether C++ may be used.

    Returns:
        One position in ``modules`` per op.

    Example:
        >>> tree = [Module(""), Module("fc", "Linear", 0), Module("act", "ReLU", 0)]
        >>> align(["aten::linear", "aten::relu", "aten::sum"], tree)
        [1, 2, 0]
    """
    children: list[list[int]] = [[] for _ in modules]
    for position, module in enumerate(modules[1:], start=1):
        children[module.parent].append(position)
    bare = [plain(name) for name in names]
    for ease in _EASE:
        path = _aligned(bare, modules, children, ease=ease, native=native)
        children = _reordered(path, modules, children)
    return _aligned(bare, modules, children, ease=1, native=native)


def _aligned(
    names: list[str], modules: Sequence[Module], children: list[list[int]], *, ease: int, native: bool
) -> list[int]:
    slots = _slots(modules, children)
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    lent = [_lenders(slot, modules, children) for slot in slots]
    cost = np.array([_costs(name, slots, lent) for name in vocabulary], dtype=np.int64).reshape(
        len(vocabulary), len(slots)
    )
    path = cheapest_path(
        [vocabulary[name] for name in names],
        cost,
        [slot.skip // ease for slot in slots],
        [slot.family for slot in slots],
        back=_BACK,
        far=_FAR,
        native=native,
    )
    return [
        slots[number].module if name not in lent[number] else lent[number][name]
        for name, number in zip(names, path, strict=True)
    ]


def _slots(modules: Sequence[Module], children: list[list[int]]) -> list[_Slot]:
    found: list[_Slot] = []
    waiting: list[tuple[int, int]] = [(0, 0)]
    while waiting:
        module, gap = waiting.pop()
        known = KNOWN.get(class_of(modules[module].kind))
        if not children[module]:
            skip = _SKIP_FREE if known is None else _SKIP_KNOWN if known else 0
            skip = _SKIP_LIGHT if class_of(modules[module].kind) in _LIGHT else skip
            family = max(modules[module].parent, 0)
            first, after = AROUND.get(class_of(modules[module].kind), (frozenset(), frozenset()))
            found += [_Slot(module, True, family, first, 0, around=True)] * bool(first)
            found.append(_Slot(module, True, family, known, skip))
            found += [_Slot(module, True, family, after, 0, around=True)] * bool(after)
            continue
        own = KNOWN["loss"] if class_of(modules[module].kind) == "loss" else None
        found.append(_Slot(module, False, module, own, 0, last=gap == len(children[module])))
        if gap < len(children[module]):
            waiting += [(module, gap + 1), (children[module][gap], 0)]
    return found


def _lenders(slot: _Slot, modules: Sequence[Module], children: list[list[int]]) -> dict[str, int]:
    """Ops that a module may make through a child that runs a second time, and the child."""
    found: dict[str, int] = {}
    for child in [] if slot.leaf else children[slot.module]:
        if not children[child]:
            for name in KNOWN.get(class_of(modules[child].kind)) or ():
                found[name] = child
    return found


def _costs(name: str, slots: list[_Slot], lent: list[dict[str, int]]) -> list[int]:
    """What an op costs in each slot."""
    claimed = any(slot.known is not None and name in slot.known and not slot.around for slot in slots)
    glue, stolen = name in GLUE, _STOLEN_LIGHT if name in _LIGHT else _STOLEN
    found = []
    for slot, others in zip(slots, lent, strict=True):
        if slot.known is not None and name in slot.known:
            found.append(0)
        elif slot.leaf and slot.known is not None:
            found.append(_GLUE if glue and slot.known and not slot.around else _MISS)
        elif slot.leaf:
            found.append(stolen if claimed else _FREE_GLUE if glue else _FREE)
        else:
            free = _LAST if slot.last and name in ("add", "add_") else _PARENT
            lending = _LENT_LIGHT if name in _LIGHT else _LENT
            found.append(lending if name in others else stolen if claimed else free)
    return found


def _reordered(path: list[int], modules: Sequence[Module], children: list[list[int]]) -> list[list[int]]:
    """Put the children of each class in the order in which most of its instances run them."""
    first = [-1] * len(modules)
    for position, module in enumerate(path):
        while module >= 0 and first[module] < 0:
            first[module] = position
            module = modules[module].parent
    shapes: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for module, below in enumerate(children):
        if below:
            names = tuple(modules[child].path.rpartition(".")[2] for child in below)
            shapes.setdefault((modules[module].kind, names), []).append(module)
    found = list(children)
    for instances in shapes.values():
        votes: Counter[tuple[int, ...]] = Counter()
        for module in instances:
            below = children[module]
            if all(first[child] >= 0 for child in below):
                votes[tuple(sorted(range(len(below)), key=lambda k: first[below[k]]))] += 1
        if votes:
            order = votes.most_common(1)[0][0]
            for module in instances:
                found[module] = [children[module][k] for k in order]
    return found
