"""Constraint programs as plain values, solved by CP-SAT in a process of its own; see ``cp_worker.py``."""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from tightrope.core import TightropeError

Expression: TypeAlias = tuple[int, int]
"""A variable plus an offset; variable -1 stands for none."""
ALWAYS = -1
"""The literal that is always true."""


def constant(value: int) -> Expression:
    """Write a number as an expression."""
    return -1, value


@dataclass(slots=True)
class ConstraintProgram:
    """A constraint program to be minimised; variables are numbered in the order in which they are added."""

    domains: list[list[int]] = field(default_factory=list)
    rows: list[tuple[list[tuple[int, int]], int, int, int]] = field(default_factory=list)
    intervals: list[tuple[Expression, Expression, Expression, int]] = field(default_factory=list)
    cumulatives: list[tuple[list[int], list[int], Expression]] = field(default_factory=list)
    reservoirs: list[tuple[list[Expression], list[int], list[int]]] = field(default_factory=list)
    objective: list[tuple[int, int]] = field(default_factory=list)
    hints: list[tuple[int, int]] = field(default_factory=list)

    def integer(self, low: int, high: int) -> int:
        """Add a variable in ``[low, high]`` and return its number."""
        self.domains.append([low, high])
        return len(self.domains) - 1

    def member(self, values: Iterable[int]) -> int:
        """Add a variable that takes one of some values."""
        self.domains.append([end for value in sorted(values) for end in (value, value)])
        return len(self.domains) - 1

    def at_most(self, small: Expression, large: Expression, literal: int = ALWAYS) -> None:
        """Demand ``small <= large``, where the literal is true."""
        terms = [(v, factor) for (v, _), factor in ((small, 1), (large, -1)) if v >= 0]
        self.rows.append((terms, -(2**62), large[1] - small[1], literal))

    def interval(self, start: Expression, size: Expression, end: Expression, literal: int = ALWAYS) -> int:
        """Add an interval ``[start, end)`` and return its number."""
        self.intervals.append((start, size, end, literal))
        return len(self.intervals) - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What CP-SAT says: ``values`` are empty when no solution is known; ``proved`` = best, or none exists."""

    values: tuple[int, ...]
    proved: bool
    bound: float


class Worker:
    """A process with CP-SAT, ended by ``with``.

    Raises:
        TightropeError: OR-Tools is not installed, or does not load.

    Example:
        >>> problem = ConstraintProgram()
        >>> count = problem.integer(2, 5)
        >>> problem.objective.append((count, 1))
        >>> with Worker() as worker:
        ...     worker.solve(problem, effort=1.0, seed=0, seconds=None).values
        (2,)
    """

    def __init__(self) -> None:
        path = Path(__file__).with_name("cp_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            encoding="utf-8",
        )
        missing = self._answer()["error"]
        if missing:
            self.close()
            raise TightropeError(
                f"this planner needs OR-Tools, which is not installed or does not load ({missing[:80]}): "
                "pip install 'tightrope[exact]', or use planner=\"auto\"."
            )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()

    def solve(
        self, problem: ConstraintProgram, *, effort: float, seed: int, seconds: float | None
    ) -> Outcome:
        """Minimise on one thread; equal arguments without ``seconds`` give equal outcomes.

        Args:
            problem: to solve.
            effort: CP-SAT's deterministic seconds.
            seed: of its random choices.
            seconds: by the clock, None = unlimited.

        Raises:
            TightropeError: CP-SAT refuses the model, or its process ended.
        """
        parameters = {"num_workers": 1, "random_seed": seed, "max_deterministic_time": effort}
        if seconds is not None:
            parameters["max_time_in_seconds"] = max(0.1, seconds)
        names: Sequence[str] = ConstraintProgram.__slots__
        message = {name: getattr(problem, name) for name in names} | {"parameters": parameters}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise TightropeError("the process of CP-SAT ended; start the planner again.") from error
        answer = self._answer()
        if answer["error"]:
            raise TightropeError(f"CP-SAT refuses the model: {answer['error'][:200]}")
        proved = answer["status"] in ("OPTIMAL", "INFEASIBLE")
        return Outcome(tuple(answer["values"]), proved, float(answer["bound"]))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise TightropeError("the process of CP-SAT ended without an answer; it may need more memory.")
        answer: dict[str, Any] = json.loads(line)
        return answer
