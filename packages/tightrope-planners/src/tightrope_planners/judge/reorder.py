"""Rewrite an executable with first runs in another order as one in base order, of a reordered graph.

Idea        The order of first runs is read off the instructions. It is allowed if it keeps, for every
            storage, each change in place on its side of every other use, and the order of all ops that
            draw random numbers, communicate or have side effects, and the hand-over to the caller. Then
            the same executable is one in base order of the graph whose ops stand in that order.
Guarantee   An order that passes gives every op the values that the base order gives it.
Complexity  O((ops + reads) log ops).
Gaps        Two changes in place never swap, even where they commute.
"""

from itertools import pairwise
from typing import NoReturn

from msgspec.structs import replace

from tightrope.core import Executable, Flag, Fused, Graph, Instruction, JudgeError, Op, OpId, Return, Run

_SEQUENTIAL = Flag.RANDOM | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.OPAQUE


def in_base_order(graph: Graph, executable: Executable) -> tuple[Graph, Executable]:
    """Renumber ops in the order of their first runs, in the graph and in the executable alike.

    Returns:
        The graph and the executable; the same ones where first runs keep the base order.

    Raises:
        JudgeError: an op never runs, or the order of first runs may change a value.
    """
    order = _first_runs(graph, executable)
    if order == sorted(order):
        return graph, executable
    position = {op: place for place, op in enumerate(order)}
    _check_values(graph, position)
    _check_sequences(graph, position)
    moved = replace(graph, ops=tuple(replace(graph.ops[op], id=place) for place, op in enumerate(order)))
    instructions = tuple(_renamed(i, position) for i in executable.instructions)
    return moved, replace(executable, instructions=instructions)


def _ops(instruction: Instruction) -> list[OpId]:
    if isinstance(instruction, Fused):
        return [run.op for run in instruction.runs]
    return [instruction.op] if isinstance(instruction, Run | Return) else []


def _renamed(instruction: Instruction, position: dict[OpId, int]) -> Instruction:
    if isinstance(instruction, Fused):
        runs = tuple(replace(run, op=position.get(run.op, run.op)) for run in instruction.runs)
        return replace(instruction, runs=runs)
    if isinstance(instruction, Run | Return):
        return replace(instruction, op=position.get(instruction.op, instruction.op))
    return instruction


def _first_runs(graph: Graph, executable: Executable) -> list[OpId]:
    ran = (op for instruction in executable.instructions for op in _ops(instruction))
    order = list(dict.fromkeys(op for op in ran if 0 <= op < len(graph.ops)))
    if len(order) < len(graph.ops):
        missing = min(set(range(len(graph.ops))) - set(order))
        _fail(f"{_title(graph.ops[missing])} never runs")
    return order


def _check_values(graph: Graph, position: dict[OpId, int]) -> None:
    """Every use of a storage must stay on the same side of its creation and of each change in place."""
    changed_by: dict[int, list[Op]] = {}
    made_by: dict[int, Op] = {}
    uses: dict[int, list[Op]] = {}
    for op in graph.ops:
        made_by.update(dict.fromkeys(op.creates, op))
        for storage in {*op.reads, *(graph.op(op.variant).reads if op.variant >= 0 else ())}:
            uses.setdefault(storage, []).append(op)
        for storage in op.mutates:
            changed_by.setdefault(storage, []).append(op)
    for storage, users in uses.items():
        fixed = [*([made_by[storage]] if storage in made_by else []), *changed_by.get(storage, ())]
        for anchor in fixed:
            for op in users:
                if op.id != anchor.id and (op.id < anchor.id) != (position[op.id] < position[anchor.id]):
                    _fail(
                        f"{_title(op)} and {_title(anchor)} swap, but both use storage {storage}, and one "
                        "makes or changes it"
                    )


def _check_sequences(graph: Graph, position: dict[OpId, int]) -> None:
    ordered = [op for op in graph.ops if op.flags & _SEQUENTIAL]
    for before, after in pairwise(ordered):
        if position[before.id] > position[after.id]:
            _fail(f"{_title(before)} and {_title(after)} swap, but their order has effects")
    handovers = {end - 1 for end in graph.boundaries}
    for op in graph.ops:
        place = position[op.id]
        moved = op.id in handovers and place != op.id
        if moved or graph.part_of(op.id) != graph.part_of(place):
            _fail(f"{_title(op)} moves across the hand-over to the caller before op {graph.handover(op.id)}")


def _title(op: Op) -> str:
    return f"op {op.id} {op.describe()}"


def _fail(what: str) -> NoReturn:
    raise JudgeError(f"order: {what}.")
