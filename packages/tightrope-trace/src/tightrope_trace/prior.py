"""Prior on the order in which the children of a module run: what names and definitions suggest.

Idea        Alignments that are equally cheap exist: a net that normalizes before its blocks and one that does
            it after them run the same ops. So an order has a penalty for what is unlikely before any op is
            seen: a child that is called input is not the first, a final one not the last, a leaf changed
            sides with a list of modules, lists alternate the other way round. Children of one class keep the
            order of their definition, but numbered ones run by number, projections to query, key and value in
            this order, attention before cross attention, and the children of torch's own encoder and decoder
            layers in theirs, with norms first or last.
Guarantee   Only classes of torch with exactly torch's children have a known program.
Complexity  Quadratic in the children of a class.
Gaps        Children of one class that run in an order that no name tells.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from tightrope_trace.vocabulary import class_of, is_norm, words_of

Units = list[list[int]]
"""Children of a class by position in the order of definition; a list of modules is one unit."""

_ODD: Final = 40
_ACROSS_LIST: Final = 30
_LONG: Final = 2
_FIRST: Final = frozenset({"input", "pre", "in", "before", "first"})
_LAST: Final = frozenset({"final", "last"})


def _exactly(names: str) -> list[str]:
    return [f"^{name}$" for name in names.split()]


_CONVENTIONS: Final = tuple(
    tuple(map(re.compile, patterns))
    for patterns in (
        [
            rf"^(?:w|to)?_?(?:{role})(?:_?(?:proj|lin|linear|layer))?$"
            for role in ("q|query", "k|key", "v|value")
        ],
        [r"^token_type_embeddings?$", r"^position_embeddings?$"],
        [
            r"^(?:self_?)?att(?:n|ention)$",
            r"^(?:(?:cross|enc(?:oder)?|encdec|src|inter)_?att(?:n|ention)|cross|multihead_attn)$",
        ],
        _exactly("self_attn dropout1 norm1 linear1 dropout linear2 dropout2 norm2"),
        _exactly(
            "self_attn dropout1 norm1 multihead_attn dropout2 norm2 linear1 dropout linear2 dropout3 norm3"
        ),
    )
)
"""Names of children that run in this order, wherever they are defined: most attention, BERT's kin, and
torch's own layers of encoders and decoders; a long one holds only where these are all names that occur."""
_PERCEPTRON: Final = re.compile(r"mlp|ffn|feed_?forward|^ff|^fc|expert", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"^([^.]*[^.0-9])([0-9]{1,4})$", re.ASCII)
_LONG_CONVENTION: Final = 4
_NORM_FIRST: Final = tuple(
    names.split()
    for names in (
        "norm1 self_attn dropout1 norm2 linear1 dropout linear2 dropout2",
        "norm1 self_attn dropout1 norm2 multihead_attn dropout2 norm3 linear1 dropout linear2 dropout3",
    )
)
_PROGRAMS: Final = {
    "TransformerEncoderLayer": (frozenset(_NORM_FIRST[0]),),
    "TransformerDecoderLayer": (frozenset(_NORM_FIRST[1]),),
    "TransformerEncoder": (frozenset({"layers"}), frozenset({"layers", "norm"})),
    "TransformerDecoder": (frozenset({"layers"}), frozenset({"layers", "norm"})),
    "Transformer": (frozenset({"encoder", "decoder"}),),
}


_ACTS: Final = frozenset(["add", "relu", "gelu", "silu", "elu", "leaky_relu", "tanh", "sigmoid", "mul"])
_MASKS: Final = frozenset(["full", "triu", "eq", "all", "is_nonzero"])
OWN_WORDS: Final = {
    "TransformerEncoderLayer": _ACTS, "TransformerDecoderLayer": _ACTS, "TransformerEncoder": _MASKS,
    "TransformerDecoder": _MASKS, "Transformer": frozenset[str](),
}  # fmt: skip
"""What these classes of torch do themselves."""


SUMMED: Final = frozenset({"TransformerEncoderLayer", "TransformerDecoderLayer"})
"""Classes of torch that end with a norm, or with a sum."""


def has_program(kind: str, names: Sequence[str]) -> bool:
    """Whether a class is one of torch's whose children run in an order known here, and in no other.

    Example:
        >>> has_program("Transformer", ["encoder", "decoder"]), has_program("Transformer", ["a", "b"])
        (True, False)
    """
    return {name.partition(".")[0] for name in names} in _PROGRAMS.get(kind, ())


def units_of(names: Sequence[str]) -> Units:
    """Group the children of a module: lists stay together; what goes by a convention runs in its order.

    Example:
        >>> units_of(["k_proj", "v_proj", "q_proj", "h.0", "h.1"])
        [[2], [0], [1], [3, 4]]
    """
    found: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        found.setdefault(name.partition(".")[0], []).append(position)
    units = list(found.values())
    _by_number(units, names)
    for convention in _CONVENTIONS:
        heads = [names[unit[0]].partition(".")[0] for unit in units]
        ranks = {place: rank for place, name in enumerate(heads) if (rank := _role(name, convention)) >= 0}
        if len(ranks) < len(convention) or (len(convention) >= _LONG_CONVENTION and len(units) > len(ranks)):
            continue
        moved = [units[place] for place in sorted(ranks, key=ranks.__getitem__)]
        for place, unit in zip(ranks, moved, strict=True):
            units[place] = unit
    return units


def _by_number(units: Units, names: Sequence[str]) -> None:
    """Let children that are numbered run in the order of their numbers: ``norm1`` before ``norm2``."""
    stems: dict[str, list[tuple[int, int]]] = {}
    for place, unit in enumerate(units):
        if (found := _NUMBERED.match(names[unit[0]])) and len(unit) == 1:
            stems.setdefault(found[1], []).append((int(found[2]), place))
    for numbered in stems.values():
        moved = [units[place] for _, place in sorted(numbered)]
        for (_, place), unit in zip(sorted(numbered, key=lambda pair: pair[1]), moved, strict=True):
            units[place] = unit


def norm_first(names: Sequence[str], kinds: Sequence[str]) -> Units:
    """Group children so that every branch has its norm before it; see `_paired`."""
    units = units_of(names)
    at = {names[unit[0]].partition(".")[0]: place for place, unit in enumerate(units)}
    if set(at) == {"layers", "norm"}:  # torch's own stacks
        return units
    for known in _NORM_FIRST:
        if set(at) == set(known):
            return [units[at[name]] for name in known]
    return _paired(units, names, kinds, before=True)


def norm_last(names: Sequence[str], kinds: Sequence[str]) -> Units:
    """Group children so that every branch has its norm behind it; see `_paired`."""
    units = units_of(names)
    heads = {names[unit[0]].partition(".")[0] for unit in units}
    known = heads == {"layers", "norm"} or any(heads == set(one) for one in _NORM_FIRST)
    return units if known else _paired(units, names, kinds, before=False)


def _paired(units: Units, names: Sequence[str], kinds: Sequence[str], *, before: bool) -> Units:
    """Put norms before or behind branches, both as they are defined; as they are where counts differ.

    A branch is a child that attends or that is of a class of its own, or a run of layers with what stands
    between; a perceptron comes after what attends.
    """
    norms: Units = []
    branches: Units = []
    layers: list[int] = []
    for unit in units:
        if all(is_norm(kinds[child]) for child in unit):
            norms += [[child] for child in unit]
        elif words_of(kinds[unit[0]]) is None or class_of(kinds[unit[0]]) == "multiheadattention":
            branches.append(unit)
        elif layers:
            layers += unit
        else:
            layers = list(unit)
            branches.append(layers)
    lists = any(len(branch) > 1 and branch is not layers for branch in branches)
    if not norms or lists or len(norms) != len(branches):
        return units
    branches.sort(key=lambda branch: _PERCEPTRON.search(names[branch[0]]) is not None)
    pairs = zip(norms, branches, strict=True) if before else zip(branches, norms, strict=True)
    return [unit for pair in pairs for unit in pair]


def _role(name: str, convention: Sequence[re.Pattern[str]]) -> int:
    return next((rank for rank, pattern in enumerate(convention) if pattern.match(name)), -1)


def as_defined(names: Sequence[str], kinds: Sequence[str]) -> Units:
    """Group children in the order of their definition, but for conventions; see `units_of`."""
    return units_of(names)


def named_first(names: Sequence[str], kinds: Sequence[str]) -> Units:
    """Group children and put those whose names say so to the front and to the end."""
    return sorted(units_of(names), key=lambda unit: _rank(names[unit[0]]))


def _rank(name: str) -> int:
    words = set(re.split(r"[_.]", name.lower())) | ({"before"} if name.endswith("_before") else set())
    return -1 if words & _FIRST else 1 if words & _LAST else 0


def order_penalty(units: Units, names: Sequence[str]) -> int:
    """Sum up what is unlikely about an order.

    Args:
        units: the order.
        names: of the children, in the order of their definition.

    Example:
        >>> names = ["attn", "input_norm"]
        >>> order_penalty([[0], [1]], names), order_penalty([[1], [0]], names)
        (40, 0)
    """
    ranks = [_rank(names[unit[0]]) for unit in units]
    total = _ODD * sum(rank < 0 for rank in ranks[1:])
    if any(len(unit) >= _LONG for unit in units):
        total += _ODD * sum(rank > 0 for rank in ranks[:-1])
    for unit in units:
        if len(unit) >= _LONG and unit[0] != min(unit):
            total += _ODD
    for one, other in combinations(units, 2):
        if one[0] > other[0] and max(len(one), len(other)) >= _LONG:
            total += _ACROSS_LIST
    return total


def moves(units: Units, names: Sequence[str], kinds: Sequence[str], start: Units) -> Iterator[Units]:
    """List the orders that are one move away: a unit to another place, or two lists that alternate.

    Args:
        units: the present order.
        names: of the children, in the order of their definition.
        kinds: class names of the children, in the order of their definition.
        start: the order in which children of one class stay.
    """
    rank = {child: place for place, child in enumerate(child for unit in start for child in unit)}
    for candidate in _neighbours(units, names):
        last: dict[str, int] = {}
        for child in (child for unit in candidate for child in unit):
            if last.get(kinds[child], -1) > rank[child]:
                break
            last[kinds[child]] = rank[child]
        else:
            yield candidate


def _neighbours(units: Units, names: Sequence[str]) -> Iterator[Units]:
    yield from alternations(units, names)
    for source, unit in enumerate(units):
        rest = units[:source] + units[source + 1 :]
        for target in range(len(units)):
            if target != source:
                yield [*rest[:target], unit, *rest[target:]]


def alternations(units: Units, names: Sequence[str]) -> Iterator[Units]:
    """List the orders in which two more lists alternate."""
    for first, second in combinations(range(len(units)), 2):
        one, other = units[first], units[second]
        for former, latter in ((one, other), (other, one)):
            if both := _alternating(former, latter, names):
                yield [*units[:first], both, *units[first + 1 : second], *units[second + 1 :]]


def _alternating(one: list[int], other: list[int], names: Sequence[str]) -> list[int]:
    """Two lists, item by item; nothing where they are no lists, or not about equally long.

    Example:
        >>> _alternating([0, 1], [2, 3, 4], ["a.0", "a.1", "b.0", "b.1", "b.2"])
        [0, 2, 1, 3, 4]
    """
    ends = [{_item(names[child]) for child in unit} for unit in (one, other)]
    if any(-1 in items or len(items) < _LONG for items in ends) or abs(max(ends[0]) - max(ends[1])) > 1:
        return []
    return sorted([*one, *other], key=lambda child: _item(names[child]))


def _item(name: str) -> int:
    """The number of an item of a list, or -1."""
    number = name.split(".")[1:2]
    return int(number[0]) if number and number[0].isascii() and number[0].isdecimal() else -1
