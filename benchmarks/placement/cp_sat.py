"""CP-SAT on buffers from standard input: prints the peak, and whether it is proved."""

import json
import sys

from ortools.sat.python import cp_model


def solve(buffers: list[tuple[int, int, int]], seconds: float) -> tuple[int | None, bool]:
    """Minimise the peak of (size, start, end) rectangles."""
    model = cp_model.CpModel()
    most = sum(size for size, _, _ in buffers)
    peak = model.new_int_var(0, most, "peak")
    across, up = [], []
    for number, (size, start, end) in enumerate(buffers):
        offset = model.new_int_var(0, most - size, f"o{number}")
        across.append(model.new_fixed_size_interval_var(start, end - start, f"x{number}"))
        up.append(model.new_fixed_size_interval_var(offset, size, f"y{number}"))
        model.add(offset + size <= peak)
    model.add_no_overlap_2d(across, up)
    model.add_cumulative(across, [size for size, _, _ in buffers], peak)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return (int(solver.objective_value) if found else None), status == cp_model.OPTIMAL


if __name__ == "__main__":
    json.dump(solve([tuple(row) for row in json.load(sys.stdin)], float(sys.argv[1])), sys.stdout)
