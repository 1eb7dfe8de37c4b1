"""The process that holds CP-SAT: one JSON line in, one JSON line out, until the input ends.

It is run by path and imports nothing of the package: OR-Tools and highspy each bring a `libhighs.so.1`
of another version, and one process can load only one of them.

A problem is a dictionary: ``domains`` (values allowed, per variable), ``rows`` (terms, low, high, literal),
``intervals`` (start, size, end, literal), ``cumulatives`` (intervals, heights, capacity), ``reservoirs``
(times, changes, literals), ``objective`` (terms), ``hints`` (variable, value), ``parameters``. An expression
is a pair (variable, offset), variable -1 = none; a literal is a variable, -1 = always.
"""

import json
import sys
from typing import Any


def solve(cp: Any, problem: dict[str, Any]) -> dict[str, Any]:
    """Build the model, solve it, and read the values."""
    model = cp.CpModel()
    variables = [
        model.new_int_var_from_domain(cp.Domain.from_flat_intervals(domain), "")
        for domain in problem["domains"]
    ]
    intervals = _constrain(model, variables, problem)
    for used, heights, capacity in problem["cumulatives"]:
        model.add_cumulative([intervals[i] for i in used], heights, _value(variables, capacity))
    model.minimize(sum(variables[v] * factor for v, factor in problem["objective"]))
    for variable, value in problem["hints"]:
        model.add_hint(variables[variable], value)
    solver = cp.CpSolver()
    for name, value in problem["parameters"].items():
        setattr(solver.parameters, name, value)
    status = solver.solve(model)
    known = status in (cp.OPTIMAL, cp.FEASIBLE)
    return {
        "status": solver.status_name(status),
        "values": [solver.value(variable) for variable in variables] if known else [],
        "bound": solver.best_objective_bound if known else 0.0,
        "error": model.validate() if status == cp.MODEL_INVALID else "",
    }


def _constrain(model: Any, variables: list[Any], problem: dict[str, Any]) -> list[Any]:
    for terms, low, high, literal in problem["rows"]:
        row = model.add_linear_constraint(sum(variables[v] * factor for v, factor in terms), low, high)
        if literal >= 0:
            row.only_enforce_if(variables[literal])
    for times, changes, literals in problem["reservoirs"]:
        model.add_reservoir_constraint_with_active(
            [_value(variables, time) for time in times],
            changes,
            [_value(variables, (literal, 1 if literal < 0 else 0)) for literal in literals],
            0,
            len(changes),
        )
    return [
        model.new_optional_interval_var(
            _value(variables, start),
            _value(variables, size),
            _value(variables, end),
            _value(variables, (literal, 1 if literal < 0 else 0)),
            "",
        )
        for start, size, end, literal in problem["intervals"]
    ]


def _value(variables: list[Any], expression: tuple[int, int]) -> Any:
    variable, offset = expression
    return offset if variable < 0 else variables[variable] + offset if offset else variables[variable]


def main() -> None:
    """Say whether OR-Tools is there, then answer problems."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"error": ""}), flush=True)
    for line in sys.stdin:
        print(json.dumps(solve(cp_model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
