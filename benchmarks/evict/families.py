"""Logs in DTR's format for the families that DTR was shown on: training steps of synthetic nets.

A net is a list of nodes: (parents, bytes, weight). A light op takes 0.2 ns per byte of its result, as a copy
does at 5 GB/s, a heavy one ten times as long. Backward visits them in reverse: one op per parent reads the
gradient of the node and what the node read, an add joins gradients, and heavy nodes have a weight whose
gradient stays to the end of the step.
"""

import json
import random
from collections.abc import Callable
from typing import Any, Final

from tightrope_planners.evict.log import EvictionLog
from tightrope_planners.formats.eviction import log_of_graph

Node = tuple[list[int], int, int]
_HEAVY_NS: Final = 10
_LIGHT_NS: Final = 1
_MIB: Final = 2**20


def dtr_log(nodes: list[Node]) -> bytes:
    """Write the log of a training step; parent -1 is the input."""
    lines: list[dict[str, Any]] = []

    def constant(name: str, size: int) -> None:
        lines.append({"INSTRUCTION": "CONSTANT", "NAME": name})
        lines.append({"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)})

    def call(target: str, arguments: list[str], result: str, size: int, ns: int) -> None:
        ns = ns * (size + 2**14) // 5
        entry = {
            "INSTRUCTION": "CALL",
            "NAME": target,
            "ARGS": arguments,
            "RESULT": [result],
            "TIME": str(ns),
        }
        lines.append(entry)
        lines.append({"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size)})
        lines.append({"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": "-1"})

    constant("x-1", nodes[0][1])
    heavy = [ns >= _HEAVY_NS for _, _, ns in nodes]
    for at, (_, size, _) in enumerate(nodes):
        if heavy[at]:
            constant(f"w{at}", size // 8)
    for at, (parents, size, ns) in enumerate(nodes):
        weight = [f"w{at}"] if heavy[at] else []
        call("heavy" if heavy[at] else "light", [f"x{p}" for p in parents] + weight, f"x{at}", size, ns)
    last = len(nodes) - 1
    call("loss_backward", [f"x{last}"], f"g{last}", nodes[last][1], _LIGHT_NS)
    terms = {last: f"g{last}"}
    for at in range(last, -1, -1):
        parents, size, ns = nodes[at]
        if at not in terms:
            continue
        reads = [terms[at], *(f"x{p}" for p in parents)]
        if heavy[at]:
            call("weight_backward", reads, f"wg{at}", size // 8, 8 * ns)
        for parent in parents:
            if parent < 0:
                continue
            made = f"g{at}_{parent}"
            weight = [f"w{at}"] if heavy[at] else []
            call("backward", reads + weight, made, nodes[parent][1], ns)
            if parent in terms:
                joined = f"s{at}_{parent}"
                call("add", [terms[parent], made], joined, nodes[parent][1], _LIGHT_NS)
                lines.extend({"INSTRUCTION": "RELEASE", "NAME": name} for name in (terms[parent], made))
                made = joined
            terms[parent] = made
        lines.append({"INSTRUCTION": "RELEASE", "NAME": terms[at]})
        lines.append({"INSTRUCTION": "RELEASE", "NAME": f"x{at}"})
    return "\n".join(map(json.dumps, lines)).encode()


def _chain(depth: int) -> list[Node]:
    return [([at - 1], _MIB, _HEAVY_NS if at % 3 == 0 else _LIGHT_NS) for at in range(3 * depth)]


def _u_net(depth: int) -> list[Node]:
    nodes: list[Node] = []
    skips: list[int] = []
    size = 8 * _MIB
    for _ in range(depth):
        for ns in (_HEAVY_NS, _LIGHT_NS, _HEAVY_NS, _LIGHT_NS):
            nodes.append(([len(nodes) - 1], size, ns))
        skips.append(len(nodes) - 1)
        nodes.append(([len(nodes) - 1], size // 4, _LIGHT_NS))
        size //= 2
    for skip in reversed(skips):
        size = nodes[skip][1]
        nodes.append(([len(nodes) - 1], size, _LIGHT_NS))
        nodes.append(([len(nodes) - 1, skip], size, _HEAVY_NS))
        nodes.extend([([len(nodes) - 1], size, _LIGHT_NS)])
    return nodes


def _dense(blocks: int, layers: int) -> list[Node]:
    nodes: list[Node] = [([-1], _MIB, _HEAVY_NS)]
    for block in range(blocks):
        size = _MIB >> block
        members = [len(nodes) - 1]
        for _ in range(layers):
            nodes.append((list(members), size * len(members) // 2, _LIGHT_NS))
            nodes.append(([len(nodes) - 1], size * len(members) // 2, _LIGHT_NS))
            nodes.append(([len(nodes) - 1], size // 2, _HEAVY_NS))
            members.append(len(nodes) - 1)
        nodes.append((list(members), size // 2, _HEAVY_NS))
    return nodes


def _lstm(steps: int) -> list[Node]:
    nodes: list[Node] = [([-1], 2**16, _LIGHT_NS), ([-1], 2**16, _LIGHT_NS)]
    hidden, cell = 0, 1
    for _ in range(steps):
        nodes.append(([hidden], 2**18, _HEAVY_NS))
        gates = len(nodes) - 1
        nodes.extend([([gates], 2**16, _LIGHT_NS)] * 4)
        nodes.append(([cell, gates + 1, gates + 2, gates + 3], 2**16, _LIGHT_NS))
        cell = len(nodes) - 1
        nodes.append(([cell], 2**16, _LIGHT_NS))
        nodes.append(([len(nodes) - 1, gates + 4], 2**16, _LIGHT_NS))
        hidden = len(nodes) - 1
    return nodes


def _tree(leaves: int) -> list[Node]:
    draw = random.Random(0)
    nodes: list[Node] = [([-1], 2**17, _HEAVY_NS) for _ in range(leaves)]
    roots = list(range(leaves))
    while len(roots) > 1:
        at = draw.randrange(len(roots) - 1)
        nodes.append((roots[at : at + 2], 2**19, _HEAVY_NS))
        nodes.append(([len(nodes) - 1], 2**17, _LIGHT_NS))
        nodes.append(([len(nodes) - 1, roots[at]], 2**17, _LIGHT_NS))
        roots[at : at + 2] = [len(nodes) - 1]
    return nodes


def _transformer(layers: int) -> list[Node]:
    nodes: list[Node] = [([-1], _MIB, _LIGHT_NS)]
    for _ in range(layers):
        start = len(nodes) - 1
        nodes.append(([start], _MIB, _LIGHT_NS))
        nodes.append(([start + 1], 3 * _MIB, _HEAVY_NS))
        nodes.append(([start + 2], 4 * _MIB, _LIGHT_NS))
        nodes.append(([start + 3], 4 * _MIB, _LIGHT_NS))
        nodes.append(([start + 4, start + 2], _MIB, _LIGHT_NS))
        nodes.append(([start + 5], _MIB, _HEAVY_NS))
        nodes.append(([start + 6, start], _MIB, _LIGHT_NS))
        nodes.append(([start + 7], 4 * _MIB, _HEAVY_NS))
        nodes.append(([start + 8], 4 * _MIB, _LIGHT_NS))
        nodes.append(([start + 9], _MIB, _HEAVY_NS))
        nodes.append(([start + 10, start + 7], _MIB, _LIGHT_NS))
    return nodes


FAMILIES: Final[dict[str, Callable[[], list[Node]]]] = {
    "chain": lambda: _chain(20),
    "u_net": lambda: _u_net(3),
    "dense": lambda: _dense(3, 6),
    "lstm": lambda: _lstm(24),
    "tree": lambda: _tree(24),
    "transformer": lambda: _transformer(6),
}


def synthetic(name: str, *, num_steps: int = 2) -> EvictionLog:
    """Make the log of a family: written in DTR's format, read by its reader, repeated."""
    from tightrope_planners.formats import read_dtr_log

    return log_of_graph(read_dtr_log(dtr_log(FAMILIES[name]()), name=name).graph, num_steps=num_steps)
