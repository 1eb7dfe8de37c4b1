"""Gradients that the caller gets while the backward that makes them goes on.

Idea        Gradients are put into groups, in the order in which the graph is done with them. An executable
            announces a group after the last instruction that touches one of its gradients, or an input of
            the call that one is a gradient of. The last group comes with the return.
Guarantee   The caller may do with what was announced whatever it may do after the return. No allocation, no
            release and no run moves: bytes and addresses are those of the executable without.
Complexity  Linear in the instructions and their arguments.
Gaps        A group waits for those in front of it, also where a plan is done with it earlier.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from tightrope.core import (
    Announce,
    Bytes,
    Copy,
    Executable,
    Fused,
    Graph,
    Instruction,
    Release,
    Resume,
    Return,
    Run,
    StorageId,
    Sync,
    View,
)
from tightrope.core.values import EMPTY, views

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Numbers of outputs of a backward, which are gradients of the inputs with these numbers; in order."""
_MOST: Final = 10
"""Parts of all bytes. A group, which takes 0.1 ms of a step and more, is of that size, or one large gradient
with at most a quarter of that in front of it; so at most a tenth, or one gradient, waits for the end."""
_LEAST: Final[Bytes] = 128 * 1024
"""Bytes of a group: less is sent in less time than it takes to announce it."""


def groups(graph: Graph, wanted: Collection[int]) -> Groups:
    """Put the gradients of a graph of two parts into groups, in the order in which it is done with them.

    Args:
        graph: as it was captured.
        wanted: numbers of inputs whose gradients may be announced.

    Returns:
        Nothing where one group would do. In a group the smaller ones come first, as of a layer its bias does
        in torch: in the other order large weights fill buckets alone, and what averages them sends more.

    Example:
        >>> from tightrope.core import Input, Op, Part, Storage
        >>> one, two = (View(number, "float32", (2**20,), (1,)) for number in (2, 3))
        >>> ops = (Op(0, "return", "return"), Op(1, "b", "b", (), (3,)), Op(2, "a", "a", (), (2,)))
        >>> given = tuple(Input(name, View(at, "float32", (1,), (1,))) for at, name in enumerate("wv"))
        >>> storages = tuple(Storage(number, 2**22) for number in range(4))
        >>> groups(Graph(ops, storages, (), (Part(1, given), Part(3, (), (one, two)))), (0, 1))
        ((1,), (0,))
    """
    forward, backward = graph.parts
    last: dict[StorageId, int] = {}
    for op in graph.ops:
        last.update(dict.fromkeys((*op.reads, *op.creates), op.id))
    done: dict[StorageId, int] = {}
    positions: dict[StorageId, list[int]] = {}
    for position in sorted(wanted):
        made, given = backward.outputs[position], forward.inputs[position].view
        if isinstance(made, View) and made.base != EMPTY and given is not None:
            at = max(last.get(made.base, -1), last.get(given.base, -1))
            done[made.base] = max(done.get(made.base, -1), at)
            positions.setdefault(made.base, []).append(position)
    least = max(sum(graph.storages[storage].size for storage in done) // _MOST, _LEAST)
    found: list[list[int]] = [[]]
    size: Bytes = 0
    for storage in sorted(done, key=lambda one: (done[one], one)):
        own = graph.storages[storage].size
        if size >= (least if own < least else least // 4):
            found.append([])
            size = 0
        found[-1] += positions[storage]
        size += own
    sizes = {position: graph.storages[storage].size for storage in done for position in positions[storage]}
    return tuple(tuple(sorted(group, key=sizes.__getitem__)) for group in found) if len(found) > 1 else ()


def announced(graph: Graph, executable: Executable, part: int, groups: Groups) -> Executable:
    """Let a part of an executable announce groups of its gradients.

    Args:
        graph: that it was lowered from.
        executable: any.
        part: a backward.
        groups: of its outputs, the last of which comes with the return.
    """
    begin, end = _span(executable, part)
    returned = executable.instructions[end]
    assert isinstance(returned, Return)
    given = _given(executable, forward_of(graph, part))
    touched = _touched(executable.instructions[begin:end])
    at = 0
    after: dict[int, list[Announce]] = {}
    for group in groups[:-1]:
        outputs = tuple(returned.outputs[position] for position in group)
        buffers = {view.base for value in outputs for view in views(value)}
        buffers.update(given[position] for position in group)
        at = max(at, *(touched.get(buffer, 0) for buffer in buffers))
        after.setdefault(begin + at, []).append(Announce(group, outputs))
    instructions: list[Instruction] = []
    waiting: list[Announce] = []
    for number, instruction in enumerate(executable.instructions):
        if not isinstance(instruction, Release):
            instructions += waiting
            waiting = after.get(number, [])
        instructions.append(instruction)
    return replace(executable, instructions=tuple(instructions))


def forward_of(graph: Graph, part: int) -> int:
    """The part that began the call that a part belongs to."""
    return next(number for number, one in enumerate(graph.parts) if one.call == graph.parts[part].call)


def _span(executable: Executable, part: int) -> tuple[int, int]:
    """Where a part resumes, and where it returns."""
    numbered = list(enumerate(executable.instructions))
    begin = next(at for at, one in numbered if isinstance(one, Resume) and one.part == part)
    return begin, next(at for at, one in numbered[begin:] if isinstance(one, Return))


def _given(executable: Executable, part: int) -> Mapping[int, int]:
    """The buffer that each input of a part looks into."""
    begin, _ = _span(executable, part)
    resumed = executable.instructions[begin]
    assert isinstance(resumed, Resume)
    return {at: one.view.base for at, one in enumerate(resumed.inputs) if one.view is not None}


def _touched(instructions: Sequence[Instruction]) -> Mapping[int, int]:
    """The last instruction that touches each buffer."""
    return {buffer: at for at, instruction in enumerate(instructions) for buffer in _buffers(instruction)}


def _buffers(instruction: Instruction) -> Iterator[int]:
    match instruction:
        case Run():
            values = (*instruction.arguments, *(value for _, value in instruction.keywords))
            yield from (view.base for value in values for view in views(value))
            yield from (result.view.base for result in instruction.results)
        case Fused(runs):
            for run in runs:
                yield from _buffers(run)
        case Copy(source, target):
            yield from (source, target)
        case Sync(target):
            yield target
        case _:
            pass
