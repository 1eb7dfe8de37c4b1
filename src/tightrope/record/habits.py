"""In which order people run the children of a module: what names and definitions suggest.

Alignments that are equally cheap exist: a net that normalizes before its blocks and one that does it
after them run the same ops. So an order costs a little for what it does against habit: a child that is
called input is not the first, a final one not the last, a leaf changed sides with a list of modules.
Children of one class keep the order of their definition, for nothing else tells them apart, but
projections to query, key and value run in this order, embeddings of types before those of positions, and
the children of torch's own encoder and decoder layers in theirs.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

Units = list[list[int]]
"""Children of a class by position in the order of definition; a list of modules is one unit."""

_SURPRISE: Final = 40
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
        _exactly("self_attn dropout1 norm1 linear1 dropout linear2 dropout2 norm2"),
        _exactly(
            "self_attn dropout1 norm1 multihead_attn dropout2 norm2 linear1 dropout linear2 dropout3 norm3"
        ),
    )
)
"""Names of children that run in this order, wherever they are defined: most attention, BERT's kin, and
torch's own layers of encoders and decoders; a long one holds only where all of its names occur."""
_LONG_CONVENTION: Final = 4
_NORM_FIRST: Final = ("norm1", "self_attn", "dropout1", "norm2", "linear1", "dropout", "linear2", "dropout2")


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
    for convention in _CONVENTIONS:
        ranks = {place: rank for place, name in enumerate(found) if (rank := _role(name, convention)) >= 0}
        if len(convention) >= _LONG_CONVENTION and len(ranks) < len(convention):
            continue
        moved = [units[place] for place in sorted(ranks, key=ranks.__getitem__)]
        for place, unit in zip(ranks, moved, strict=True):
            units[place] = unit
    return units


def norm_first(names: Sequence[str]) -> Units:
    """Group the children of torch's encoder layers in the order in which they run with ``norm_first``."""
    units = units_of(names)
    at = {names[unit[0]]: place for place, unit in enumerate(units)}
    if set(at) != set(_NORM_FIRST):
        return units
    return [units[at[name]] for name in _NORM_FIRST]


def _role(name: str, convention: Sequence[re.Pattern[str]]) -> int:
    return next((rank for rank, pattern in enumerate(convention) if pattern.match(name)), -1)


def named_first(names: Sequence[str]) -> Units:
    """Group children and put those whose names say so to the front and to the end."""
    return sorted(units_of(names), key=lambda unit: _rank(names[unit[0]]))


def _rank(name: str) -> int:
    words = set(re.split(r"[_.]", name.lower())) | ({"before"} if name.endswith("_before") else set())
    return -1 if words & _FIRST else 1 if words & _LAST else 0


def surprise(units: Units, names: Sequence[str]) -> int:
    """What an order costs for all it does against habit.

    Args:
        units: the order.
        names: of the children, in the order of their definition.

    Example:
        >>> names = ["attn", "input_norm"]
        >>> surprise([[0], [1]], names), surprise([[1], [0]], names)
        (40, 0)
    """
    ranks = [_rank(names[unit[0]]) for unit in units]
    total = _SURPRISE * sum(rank < 0 for rank in ranks[1:])
    if any(len(unit) >= _LONG for unit in units):
        total += _SURPRISE * sum(rank > 0 for rank in ranks[:-1])
    for one, other in combinations(units, 2):
        if one[0] > other[0] and max(len(one), len(other)) >= _LONG:
            total += _ACROSS_LIST
    return total


def moves(units: Units, kinds: Sequence[str], start: Units) -> Iterator[Units]:
    """List the orders that one move away: a unit to another place, or two lists that alternate.

    Args:
        units: the present order.
        kinds: class names of the children, in the order of their definition.
        start: the order in which children of one class stay.
    """
    rank = {child: place for place, child in enumerate(child for unit in start for child in unit)}
    for candidate in _neighbours(units):
        last: dict[str, int] = {}
        for child in (child for unit in candidate for child in unit):
            if last.get(kinds[child], -1) > rank[child]:
                break
            last[kinds[child]] = rank[child]
        else:
            yield candidate


def _neighbours(units: Units) -> Iterator[Units]:
    for source, unit in enumerate(units):
        rest = units[:source] + units[source + 1 :]
        for target in range(len(units)):
            if target != source:
                yield [*rest[:target], unit, *rest[target:]]
    for first, second in combinations(range(len(units)), 2):
        one, other = units[first], units[second]
        if len(one) == len(other) > 1:
            both = [child for pair in zip(one, other, strict=True) for child in pair]
            yield [*units[:first], both, *units[first + 1 : second], *units[second + 1 :]]
