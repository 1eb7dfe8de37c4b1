"""The choice of widths as a program with whole numbers, for HiGHS, and problems to choose for."""

import itertools

import highspy
import numpy as np

from tightrope_ranks.compress.rows import row_bytes
from tightrope_ranks.graphs.widths import objective, scales
from tightrope_ranks.values.graphs import WidthProblem


def random_problem(
    seed: int, ranks: int, groups: int, *, weight: float = 0.5, columns: int = 128, rows: int = 100
) -> WidthProblem:
    """Draw groups for every pair of ranks, in rounds as a ring has them."""
    rng = np.random.default_rng(seed)
    pairs = [(a, (a + k) % ranks) for k in range(1, ranks) for a in range(ranks)]
    num = len(pairs) * groups
    return WidthProblem(
        beta=np.exp(rng.normal(0, 1.5, num)) * columns,
        rows=rng.integers(max(1, rows // 2), rows + 1, num),
        columns=columns,
        link=np.repeat(np.arange(len(pairs)), groups),
        round=np.array([(b - a) % ranks - 1 for a, b in pairs]),
        latency=np.full(len(pairs), 1e-4),
        pace=rng.uniform(0.5, 2.0, len(pairs)) / 25e6,
        weight=weight,
    )


def brute(problem: WidthProblem) -> float:
    """Find the best objective among all choices."""
    bits = np.array(list(itertools.product(problem.widths, repeat=len(problem.beta))))
    variance = (problem.beta / (2.0**bits - 1) ** 2).sum(1)
    size = problem.rows * row_bytes(problem.columns, bits)
    rounds = np.zeros((len(bits), int(problem.round.max()) + 1))
    for link, number in enumerate(problem.round):
        took = problem.latency[link] + problem.pace[link] * size[:, problem.link == link].sum(1)
        rounds[:, number] = np.maximum(rounds[:, number], took)
    v0, v1, t0, t1 = scales(problem)
    return float(
        (problem.weight * (variance - v0) / v1 + (1 - problem.weight) * (rounds.sum(1) - t0) / t1).min()
    )


def milp(problem: WidthProblem, seconds: float = 20.0, gap: float = 1e-4) -> tuple[float, float]:
    """Solve with HiGHS; give the objective of its choice and what it proved."""
    v0, v1, t0, t1 = scales(problem)
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    model.setOptionValue("time_limit", seconds)
    model.setOptionValue("mip_rel_gap", gap)
    widths, num, rounds = problem.widths, len(problem.beta), int(problem.round.max()) + 1
    infinite = highspy.kHighsInf
    for group in range(num):
        for bits in widths:
            cost = problem.weight * problem.beta[group] / (2**bits - 1) ** 2 / v1
            model.addVar(0, 1)
            model.changeColCost(model.getNumCol() - 1, float(cost))
            model.changeColIntegrality(model.getNumCol() - 1, highspy.HighsVarType.kInteger)
    for _ in range(rounds):
        model.addVar(0, infinite)
        model.changeColCost(
            model.getNumCol() - 1, 1 - problem.weight
        )  # in parts of t1, which keeps it near 1
    for group in range(num):
        at = np.arange(group * len(widths), (group + 1) * len(widths), dtype=np.int32)
        model.addRow(1, 1, len(at), at, np.ones(len(at)))
    for link, in_round in enumerate(problem.round):
        groups = np.flatnonzero(problem.link == link)
        pairs = groups[:, None] * len(widths) + np.arange(len(widths))
        size = problem.rows[groups][:, None] * row_bytes(problem.columns, np.array(widths))
        columns = np.append(pairs, num * len(widths) + in_round).astype(np.int32)
        values = np.append(-(problem.pace[link] * size).ravel() / t1, 1.0)
        model.addRow(float(problem.latency[link] / t1), infinite, len(columns), columns, values)
    model.run()
    shift = problem.weight * v0 / v1 + (1 - problem.weight) * t0 / t1
    chosen = np.array(model.getSolution().col_value[: num * len(widths)]).reshape(num, len(widths))
    bits = np.array(widths, np.uint8)[chosen.argmax(1)]
    return objective(problem, bits), float(model.getInfo().mip_dual_bound) - shift
