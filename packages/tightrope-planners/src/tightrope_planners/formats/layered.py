"""Random layered graphs with the published parameters, seeded.

Idea        One source, layers of random width, one sink. Consecutive layers are wired as evenly as
            possible, each node of the wider layer to a window around its proportional position in the
            narrower one; a share of all edges skips layers, drifting towards higher positions.
Source      Gagrani et al., NeurIPS 2022, appendix A; the family G1 to G4 of Moccasin (ICML 2023)
Guarantee   A connected graph in layer order, the same for equal arguments. Every op but the source
            reads something; every op but the sink is read, except where a skip is its only reader.
Complexity  O(edges).
Gaps        The mixture behind the published sizes is not published; it is fitted to their mean (2,000),
            deviation (1,600) and quartiles (700, 1,550, 3,100).
"""

import math
from itertools import pairwise
from random import Random
from typing import Final

from tightrope.core import Bytes, Graph, Op, OpId, Storage, TightropeError

_SPREAD: Final = 0.75
_DENSITY: Final = 0.2
_SKIPS: Final = 0.14
_SIZES: Final[tuple[tuple[float, float, float], ...]] = (
    (0.45, 700.0, 350.0),
    (0.35, 2200.0, 800.0),
    (0.20, 4400.0, 1300.0),
)
"""Share, mean and deviation of each part of the mixture of sizes, bytes."""
_LARGEST: Final[Bytes] = 8_200
_MOST_OPS: Final = 100_000


def random_layered(num_ops: int, *, seed: int = 0, width: float | None = None) -> Graph:
    """Draw a random layered graph.

    Args:
        num_ops: nodes, source and sink included: 4 to 100,000.
        seed: of every choice.
        width: W of the paper, between 0 and 1; None = drawn from [0.25, 0.5].

    Returns:
        A graph whose storages are charged to the byte, as the published ones are; times are the
        published durations, read as nanoseconds.

    Raises:
        TightropeError: the arguments are out of range.

    Example:
        >>> graph = random_layered(100, seed=1, width=0.27)
        >>> len(graph.ops), graph.ops[0].ns, graph == random_layered(100, seed=1, width=0.27)
        (100, 0, True)
    """
    if not 4 <= num_ops <= _MOST_OPS or (width is not None and not 0 < width < 1):
        raise TightropeError(
            f"random_layered({num_ops}, width={width}): num_ops lies between 4 and {_MOST_OPS}, "
            "width between 0 and 1."
        )
    draw = Random(seed)
    chosen = draw.uniform(0.25, 0.5) if width is None else width
    layers = _layers(num_ops, chosen, draw)
    reads: list[set[OpId]] = [set() for _ in range(num_ops)]
    for upper, lower in pairwise(layers):
        _connect(upper, lower, reads)
    _skip(layers, reads, draw)
    storages = tuple(Storage(v, _size(draw), alignment=1) for v in range(num_ops))
    ops = tuple(
        Op(v, f"node{v}", "node", tuple(sorted(reads[v])), (v,), ns=_time(v, num_ops, draw))
        for v in range(num_ops)
    )
    name = f"random_layered_n{num_ops}_w{chosen:.2f}_seed{seed}"
    return Graph(ops, storages, name=name, alignment=1)


def _layers(num_ops: int, width: float, draw: Random) -> list[range]:
    """Cut the ops into layers: one op first and last, random widths between."""
    target = math.ceil(math.sqrt(num_ops * (1 / width - 1)))
    low = max(1, math.ceil(num_ops / target * (1 - _SPREAD)))
    high = max(low, math.floor(num_ops / target * (1 + _SPREAD)))
    layers, end = [range(1)], 1
    while end < num_ops - 1:
        size = min(draw.randint(low, high), num_ops - 1 - end)
        layers.append(range(end, end + size))
        end += size
    return [*layers, range(num_ops - 1, num_ops)]


def _connect(upper: range, lower: range, reads: list[set[OpId]]) -> None:
    """Wire two consecutive layers: a window per op of the wider one, sizes as even as possible."""
    wide, narrow = (upper, lower) if len(upper) >= len(lower) else (lower, upper)
    count = int(_DENSITY * len(upper) * len(lower) + (1 - _DENSITY) * len(wide))
    used: set[OpId] = set()
    for place, op in enumerate(wide):
        window = min(len(narrow), max(1, count * (place + 1) // len(wide) - count * place // len(wide)))
        middle = (place + 0.5) / len(wide) * len(narrow)
        first = min(max(0, math.floor(middle - window / 2 + 0.5)), len(narrow) - window)
        for other in narrow[first : first + window]:
            used.add(other)
            reads[max(op, other)].add(min(op, other))
    for place, op in enumerate(narrow):
        if op not in used:
            other = wide[min(len(wide) - 1, int((place + 0.5) / len(narrow) * len(wide)))]
            reads[max(op, other)].add(min(op, other))


def _skip(layers: list[range], reads: list[set[OpId]], draw: Random) -> None:
    """Add edges between layers at distance 2 or more, to positions that drift upwards."""
    wanted = math.ceil(sum(map(len, reads)) * _SKIPS / (1 - _SKIPS))
    for _ in range(20 * wanted):
        if wanted == 0 or len(layers) < 3:
            break
        first, last = sorted(draw.sample(range(len(layers)), 2))
        x, y = draw.random(), draw.random()
        if last - first < 2:
            continue
        source = layers[first][min(int(x * len(layers[first])), len(layers[first]) - 1)]
        reader = layers[last][min(int(min(x + 0.2 * y, 1.0) * len(layers[last])), len(layers[last]) - 1)]
        if source not in reads[reader]:
            reads[reader].add(source)
            wanted -= 1


def _size(draw: Random) -> Bytes:
    share = draw.random()
    for part, mean, deviation in _SIZES:
        if share < part or (mean, deviation) == _SIZES[-1][1:]:
            size = draw.gauss(mean, deviation)
            while not 5 <= size <= _LARGEST:
                size = draw.gauss(mean, deviation)
            return max(10, round(size / 10) * 10)
        share -= part
    raise AssertionError("the last part takes what is left")


def _time(op: OpId, num_ops: int, draw: Random) -> int:
    return 0 if op in (0, num_ops - 1) else draw.randint(1, 999)
