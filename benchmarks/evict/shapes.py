"""Nets drawn from a seed, as lists of nodes for `families.dtr_log`: (parents, bytes, weight).

chain        layers one after another, in a pattern of cheap and expensive ones
u_net        levels down and up again, with skips
dense        blocks whose layers read all before them, with or without bottlenecks
lstm         cells of four gates
tree         cells over a random binary tree
transformer  attention and MLP with residuals
resnet       bottlenecks with residuals, in stages
inception    blocks of branches that are concatenated
skips        a chain of random sizes, with random connections further back
"""

from collections.abc import Callable
from random import Random
from typing import Final

from benchmarks.evict.families import Node

_MIB: Final = 2**20
_HEAVY, _LIGHT = 10, 1


class _Net:
    """Nodes so far; an op that is added reads the last one where nothing else is said."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, size: int, weight: int, *parents: int) -> int:
        self.nodes.append((list(parents) or [self.last], size, weight))
        return self.last

    @property
    def last(self) -> int:
        return len(self.nodes) - 1


def _chain(draw: Random, net: _Net) -> None:
    size = _MIB
    pattern = [draw.choice((_HEAVY, _LIGHT, _LIGHT)) for _ in range(draw.randint(2, 4))]
    for at in range(draw.randint(20, 60)):
        if draw.random() < 0.1:
            size = max(2**16, size // 2)
        net.add(size, pattern[at % len(pattern)])


def _u_net(draw: Random, net: _Net) -> None:
    size, convolutions, skips = 8 * _MIB, draw.randint(1, 3), list[tuple[int, int]]()
    for _ in range(draw.randint(2, 4)):
        for _ in range(convolutions):
            net.add(size, _HEAVY)
            net.add(size, _LIGHT)
        skips.append((net.last, size))
        net.add(size // 4, _LIGHT)
        size //= 2
    for skip, size in reversed(skips):
        up = net.add(size, _LIGHT)
        net.add(size, _HEAVY, up, skip)
        net.add(size, _LIGHT)


def _dense(draw: Random, net: _Net) -> None:
    net.add(_MIB, _HEAVY)
    bottleneck = draw.random() < 0.5
    for block in range(draw.randint(2, 4)):
        size, members = _MIB >> block, [net.last]
        for _ in range(draw.randint(4, 10)):
            net.add(size * len(members) // 2, _LIGHT, *members)
            net.add(size * len(members) // 2, _LIGHT)
            for weight in (_HEAVY, _LIGHT, _LIGHT) * bottleneck:
                net.add(2 * size, weight)
            members.append(net.add(size // 2, _HEAVY))
        net.add(size // 2, _HEAVY, *members)


def _lstm(draw: Random, net: _Net) -> None:
    hidden, cell, width = net.add(2**16, _LIGHT, -1), net.add(2**16, _LIGHT, -1), 2 ** draw.randint(14, 17)
    for _ in range(draw.randint(10, 40)):
        gates = net.add(4 * width, _HEAVY, hidden)
        first, second, third, out = (net.add(width, _LIGHT, gates) for _ in range(4))
        cell = net.add(width, _LIGHT, cell, first, second, third)
        hidden = net.add(width, _LIGHT, net.add(width, _LIGHT), out)


def _tree(draw: Random, net: _Net) -> None:
    roots = [net.add(2**17, _HEAVY, -1) for _ in range(draw.randint(10, 40))]
    while len(roots) > 1:
        at = draw.randrange(len(roots) - 1)
        net.add(2**19, _HEAVY, *roots[at : at + 2])
        cell = net.add(2**17, _LIGHT)
        roots[at : at + 2] = [net.add(2**17, _LIGHT, cell, roots[at])]


def _transformer(draw: Random, net: _Net) -> None:
    net.add(_MIB, _LIGHT)
    scores, wide = draw.choice((1, 2, 4, 8)) * _MIB, draw.choice((2, 4)) * _MIB
    for _ in range(draw.randint(3, 9)):
        before = net.last
        net.add(_MIB, _LIGHT)
        qkv = net.add(3 * _MIB, _HEAVY)
        net.add(scores, _LIGHT)
        net.add(_MIB, _LIGHT, net.add(scores, _LIGHT), qkv)
        middle = net.add(_MIB, _LIGHT, net.add(_MIB, _HEAVY), before)
        net.add(wide, _HEAVY)
        net.add(wide, _LIGHT)
        net.add(_MIB, _LIGHT, net.add(_MIB, _HEAVY), middle)


def _resnet(draw: Random, net: _Net) -> None:
    size = 2 * _MIB
    net.add(size, _HEAVY)
    for _ in range(draw.randint(2, 4)):
        for _ in range(draw.randint(2, 5)):
            before = net.last
            for share in (4, 4, 1):
                for weight in (_HEAVY, _LIGHT, _LIGHT):
                    net.add(size // share, weight)
            net.add(size, _LIGHT, net.last, before)
            net.add(size, _LIGHT)
        size //= 2
        net.add(size, _HEAVY)


def _inception(draw: Random, net: _Net) -> None:
    net.add(2 * _MIB, _HEAVY)
    size = _MIB
    for _ in range(draw.randint(2, 3)):
        for _ in range(draw.randint(2, 4)):
            before, branches = net.last, list[int]()
            for _ in range(draw.randint(2, 4)):
                at = before
                for _ in range(draw.randint(1, 3)):
                    at = net.add(size // 4, _LIGHT, net.add(size // 4, _HEAVY, at))
                branches.append(at)
            net.add(size, _LIGHT, *branches)
        size //= 2
        net.add(size, _LIGHT)


def _skips(draw: Random, net: _Net) -> None:
    net.add(_MIB, _HEAVY)
    for at in range(1, draw.randint(30, 70)):
        parents = [at - 1]
        if draw.random() < 0.25 and at > 3:
            parents.append(draw.randrange(max(0, at - 12), at - 1))
        net.add(int(_MIB * 2 ** draw.uniform(-3, 1)), draw.choice((_HEAVY, _LIGHT, _LIGHT)), *parents)


SHAPES: Final[dict[str, Callable[[Random, _Net], None]]] = {
    "chain": _chain,
    "u_net": _u_net,
    "dense": _dense,
    "lstm": _lstm,
    "tree": _tree,
    "transformer": _transformer,
    "resnet": _resnet,
    "inception": _inception,
    "skips": _skips,
}
"""By name, in the order of tables."""


def drawn_nodes(name: str, seed: int) -> list[Node]:
    """Draw a net of a family."""
    net = _Net()
    SHAPES[name](Random(f"{name} {seed}"), net)
    return net.nodes
