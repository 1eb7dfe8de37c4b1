"""Assignments within the bytes of every device: of tasks as of tables.

Idea        Items with few options and many bytes first, each where most bytes are left. Where that fails,
            CP-SAT with a literal per item and device.
Source      Worst fit, decreasing; CP-SAT of OR-Tools
Guarantee   An assignment that is found fits; CP-SAT says where none exists.
Complexity  O(items * devices), then exponential, within a limit of effort.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from tightrope.core import Bytes, InfeasibleError, TightropeError
from tightrope_shared.cp import ConstraintProgram, Worker

_EFFORT: Final = 30.0
"""Deterministic seconds of CP-SAT."""
_MOST_LITERALS: Final = 100_000


class Holding(Protocol):
    """Items with bytes, and devices with room for them."""

    @property
    def options(self) -> Sequence[Sequence[int]]:
        """Devices of each item."""

    @property
    def size(self) -> Sequence[Bytes]:
        """Bytes of each item."""

    @property
    def room(self) -> Sequence[Bytes]:
        """Bytes of each device."""


class FittingItems(NamedTuple):
    """Items that may be anywhere in their options; see `Holding`."""

    options: Sequence[Sequence[int]]
    size: Sequence[Bytes]
    room: Sequence[Bytes]


def fitting(problem: Holding, what: str = "tasks", seconds: float | None = None) -> list[int]:
    """Find an assignment within the bytes, by a search of at most ``seconds`` where packing finds none.

    Raises:
        InfeasibleError: there is none; or packing by size finds none, and OR-Tools is not installed, or the
            search is too large for its time.
    """
    found = packed(problem)
    if found is not None:
        return found
    if sum(map(len, problem.options)) > _MOST_LITERALS or (seconds is not None and seconds < 1):
        raise InfeasibleError(
            f"Packing {what} by size found no assignment within the bytes, and a search takes too long. "
            "Give devices more bytes."
        )
    try:
        return _searched(problem, what, seconds)
    except InfeasibleError:
        raise
    except TightropeError as error:
        raise InfeasibleError(
            f"packing {what} by size found no assignment within the bytes. OR-Tools would search all: {error}"
        ) from error


def packed(problem: Holding) -> list[int] | None:
    """Pack items with few options and many bytes first, each where most bytes are left."""
    hosts, free = [-1] * len(problem.size), np.array(problem.room)
    for item in sorted(range(len(hosts)), key=lambda t: (len(problem.options[t]), -problem.size[t])):
        able = list(problem.options[item])
        hosts[item] = able[int(free[able].argmax())]
        free[hosts[item]] -= problem.size[item]
        if free[hosts[item]] < 0:
            return None
    return hosts


def _searched(problem: Holding, what: str, seconds: float | None) -> list[int]:
    program = ConstraintProgram()
    chosen = assign(program, problem, ())
    with Worker() as worker:
        outcome = worker.solve(program, effort=_EFFORT, seed=0, seconds=seconds)
    if not outcome.values:
        why = "No assignment fits" if outcome.proved else "No assignment was found that fits"
        raise InfeasibleError(
            f"{why} the bytes of every device: {what} take {sum(problem.size)} bytes, devices have "
            f"{sum(problem.room)}. Give devices more bytes, or divide large {what}.",
            asked=sum(problem.room),
        )
    return [next(d for d, one in row.items() if outcome.values[one]) for row in chosen]


def assign(program: ConstraintProgram, problem: Holding, hosts: Sequence[int]) -> list[dict[int, int]]:
    """Add a literal per item and device: one is true per item, and bytes fit; hosts are a hint."""
    chosen = [{device: program.integer(0, 1) for device in able} for able in problem.options]
    for row in chosen:
        program.rows.append(([(one, 1) for one in row.values()], 1, 1, -1))
    for device, room in enumerate(problem.room):
        terms = [
            (row[device], problem.size[item])
            for item, row in enumerate(chosen)
            if device in row and problem.size[item]
        ]
        if sum(size for _, size in terms) > room:
            program.rows.append((terms, 0, room, -1))
    for item, host in enumerate(hosts):
        program.hints += [(one, int(device == host)) for device, one in chosen[item].items()]
    return chosen
