"""Linear and mixed-integer programs, column by column and row by row, solved by HiGHS."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tightrope.core import TightropeError

INFINITY = math.inf


@dataclass(frozen=True, slots=True)
class ProgramSolution:
    """What the solver says.

    Attributes:
        status: ``limit`` when it ended before a proof.
        values: one per column; empty when no feasible point is known.
        objective: of ``values``, infinite without them.
        bound: no feasible point has a smaller objective.
    """

    status: Literal["optimal", "infeasible", "limit"]
    values: tuple[float, ...]
    objective: float
    bound: float


class MixedIntegerProgram:
    """A program to be minimised; columns are numbered in the order in which they are added.

    Example:
        >>> program = MixedIntegerProgram()
        >>> column = program.column(1.0, upper=3.0, integer=True)
        >>> program.row([(column, 2.0)], lower=3.0)
        >>> program.solve().values
        (2.0,)
    """

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._integer: list[int] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []
        self._starts: list[int] = []
        self._index: list[int] = []
        self._value: list[float] = []

    @property
    def num_columns(self) -> int:
        """Columns so far."""
        return len(self._cost)

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._starts)

    def column(
        self, cost: float = 0.0, *, lower: float = 0.0, upper: float = INFINITY, integer: bool = False
    ) -> int:
        """Add a column and return its number."""
        self._cost.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        self._integer.append(int(integer))
        return len(self._cost) - 1

    def row(
        self, terms: Iterable[tuple[int, float]], *, lower: float = -INFINITY, upper: float = INFINITY
    ) -> None:
        """Add ``lower <= sum of value * column <= upper``; each column at most once."""
        self._starts.append(len(self._index))
        for column, value in terms:
            self._index.append(column)
            self._value.append(value)
        self._row_lower.append(lower)
        self._row_upper.append(upper)

    def solve(
        self,
        *,
        relax: bool = False,
        seconds: float | None = None,
        nodes: int | None = None,
        seed: int = 0,
        start: Sequence[float] = (),
    ) -> ProgramSolution:
        """Minimise, on one thread; equal arguments without ``seconds`` give equal answers.

        Args:
            relax: forget which columns are integer.
            seconds: of solving, None = unlimited.
            nodes: of the branch-and-bound tree, None = unlimited.
            seed: of the solver's random choices.
            start: a feasible value for every column, empty = none.

        Raises:
            TightropeError: the solver failed.
        """
        solver = self._load(relax)
        solver.setOptionValue("random_seed", seed)
        if seconds is not None:
            solver.setOptionValue("time_limit", max(seconds, 0.01))
        if nodes is not None:
            solver.setOptionValue("mip_max_nodes", nodes)
        import highspy  # a third of a second that most plans need not spend

        if start:
            solution = highspy.HighsSolution()
            solution.col_value = list(start)
            solver.setSolution(solution)
        if solver.run() == highspy.HighsStatus.kError:
            raise TightropeError(f"HiGHS failed: {solver.modelStatusToString(solver.getModelStatus())}.")
        return self._answer(solver, mip=not relax and any(self._integer))

    def _load(self, relax: bool) -> Any:
        import highspy

        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.num_columns, self.num_rows
        program.col_cost_ = np.array(self._cost, dtype=np.float64)
        program.col_lower_ = np.array(self._lower, dtype=np.float64)
        program.col_upper_ = np.array(self._upper, dtype=np.float64)
        program.row_lower_ = np.array(self._row_lower, dtype=np.float64)
        program.row_upper_ = np.array(self._row_upper, dtype=np.float64)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array([*self._starts, len(self._index)], dtype=np.int32)
        program.a_matrix_.index_ = np.array(self._index, dtype=np.int32)
        program.a_matrix_.value_ = np.array(self._value, dtype=np.float64)
        if not relax and any(self._integer):
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            program.integrality_ = [kinds[whole] for whole in self._integer]
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        options: dict[str, Any] = {"output_flag": False, "threads": 1, "parallel": "off", "mip_rel_gap": 0.0}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        if solver.passModel(program) == highspy.HighsStatus.kError:
            raise TightropeError("HiGHS refused the program: a coefficient is not finite or too large.")
        return solver

    def _answer(self, solver: Any, *, mip: bool) -> ProgramSolution:
        import highspy

        status: Literal["optimal", "infeasible", "limit"] = "limit"
        if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            status = "optimal"
        elif solver.getModelStatus() in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
        ):
            status = "infeasible"
        info = solver.getInfo()
        known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = tuple(solver.getSolution().col_value) if known and status != "infeasible" else ()
        objective = info.objective_function_value if values else INFINITY
        bound = info.mip_dual_bound if mip else objective if status == "optimal" else -INFINITY
        return ProgramSolution(status, values, objective, INFINITY if status == "infeasible" else bound)
