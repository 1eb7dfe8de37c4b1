"""Run it: ``python -m benchmarks graphs [--only Q1,Q2] [--json FILE]``; takes about five minutes of CPU.

Q1  rows in few bits: the mean of what arrives, its variance, and whether levels come back exactly
Q2  the choice of widths against HiGHS, and its time for 10,000 groups
Q3  epochs at 200 Mbit/s (held to it in user space) against floats and 4 bits; accuracies of five seeds
Q4  epochs with and without overlap, where at most half of the nodes are marginal
Q5  forecasts of epochs against those of Q3
Q6  time to encode 16 MiB
W1  2,000 damaged plans for the judge
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from rich.console import Console

from benchmarks.fleet.asked import print_asked
from benchmarks.graphs import real
from benchmarks.graphs.damaged import damaged
from benchmarks.graphs.exact import milp, random_problem
from benchmarks.graphs.made import clustered
from benchmarks.micro.rows import Row
from tightrope.core import JudgeError
from tightrope_ranks.compress.rows import WIDTHS, decode_rows, encode_rows, row_bytes
from tightrope_ranks.graphs import GraphOptions, plan
from tightrope_ranks.graphs.widths import choose_widths
from tightrope_ranks.judge.graphs import check_graph_plan

_TIMES, _ROWS, _COLUMNS = 1000, 64, 256


def _there_and_back(x: torch.Tensor, bits: int, seed: int) -> torch.Tensor:
    widths, which = np.full(len(x), bits, np.uint8), torch.arange(len(x))
    wire = torch.empty(int(row_bytes(x.shape[1], widths).sum()), dtype=torch.uint8)
    encode_rows(x, which, widths, seed, wire)
    return_ = torch.empty_like(x)
    decode_rows(wire, which, widths, return_)
    return return_


def rows_in_few_bits() -> list[Row]:
    """Measure bias and variance; send levels of odd sizes there and back."""
    x = torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(0)).relu()
    worst, ratios = 0.0, []
    for bits in (2, 4, 8):
        total, squares = torch.zeros(x.shape, dtype=torch.float64), 0.0
        inner = (x > 0) & (x < x.amax(1, keepdim=True))
        step = (x.amax(1) / (2**bits - 1)).double()
        for seed in range(_TIMES):
            wrong = (_there_and_back(x, bits, seed) - x).double()
            total += wrong
            squares += float(((wrong / step[:, None])[inner] ** 2).mean())
        n = _TIMES * int(inner.sum())
        sigma = (squares / _TIMES) ** 0.5
        worst = max(worst, abs(float((total / _TIMES / step[:, None])[inner].mean())) / (sigma / n**0.5))
        ratios.append(squares / _TIMES * 6)
    exact = True
    for bits in WIDTHS:
        for columns in (1, 2, 3, 5, 7, 31, 127, 128, 129):
            levels = (torch.arange(columns) % min(2**bits, 256)).float().repeat(3, 1)
            levels[:, -1] = 0 if columns == 1 else min(2**bits, 256) - 1
            exact &= torch.equal(_there_and_back(levels, bits, 1), levels)
    held = worst < 4 and all(0.97 < one < 1.03 for one in ratios) and exact
    said = ", ".join(f"{one:.3f}" for one in ratios)
    return [
        Row(
            "Q1",
            "|mean error| < 4 sigma / sqrt(n), variance 0.97 to 1.03 of D step^2 / 6, exact round trips",
            f"{worst:.2f} sigma / sqrt(n); variance {said} for 2, 4, 8 bits; "
            f"round trips {'exact' if exact else 'WRONG'}",
            held,
        )
    ]


def choices_of_widths() -> list[Row]:
    """Compare with HiGHS; time 10,000 groups."""
    gaps, own, theirs = [], 0.0, 0.0
    for weight in (0.2, 0.5, 0.8):
        problem = random_problem(1, 4, 40, weight=weight)
        start = time.thread_time()
        choice = choose_widths(problem)
        own = max(own, time.thread_time() - start)
        start = time.perf_counter()
        found, _ = milp(problem, seconds=20.0, gap=1e-3)
        theirs = max(theirs, time.perf_counter() - start)
        gaps.append(choice.objective / found - 1)
    large = random_problem(2, 4, 834)
    start = time.thread_time()
    choice = choose_widths(large)
    took = time.thread_time() - start
    same = np.array_equal(choice.bits, choose_widths(large).bits)
    said = ", ".join(f"{100 * gap:.2f}" for gap in gaps)
    return [
        Row(
            "Q2",
            "at most 1 % above HiGHS, at most 1 s for 10,000 groups, the same every time",
            f"{said} % above for weights 0.2, 0.5, 0.8, in {own:.3f} s; "
            f"{len(large.beta)} groups in {took:.3f} s, proved gap {100 * choice.gap:.4f} %; "
            f"{'the same' if same else 'NOT the same'} again",
            max(gaps) <= 0.01 and took <= 1 and same,
            f"HiGHS takes up to {theirs:.1f} s",
        )
    ]


def time_to_encode() -> list[Row]:
    """Encode 16 MiB on one thread."""
    torch.set_num_threads(1)
    x = torch.randn(32768, 128, generator=torch.Generator().manual_seed(0)).relu()
    which, said, slowest = torch.randperm(len(x)), [], 0.0
    for bits in (2, 4, 8):
        widths = np.full(len(x), bits, np.uint8)
        wire = torch.empty(int(row_bytes(128, widths).sum()), dtype=torch.uint8)
        times = []
        for seed in range(9):
            start = time.thread_time()
            encode_rows(x, which, widths, seed, wire)
            times.append(time.thread_time() - start)
        slowest = max(slowest, median(times))
        said.append(f"{1e3 * median(times):.1f}")
    return [
        Row(
            "Q6",
            "at most 15 ms to encode and pack 16 MiB",
            f"{', '.join(said)} ms for 2, 4, 8 bits",
            slowest <= 0.015,
        )
    ]


def damaged_plans() -> list[Row]:
    """Break one thing of a plan at a time, with a limit and without one."""
    graph, options = clustered(2, num=400, clusters=4, columns=12, mixed=0.2), GraphOptions("gat", 16, bits=4)
    made = plan(graph, 3, options)
    plans, rng, refused = (
        [made, plan(graph, 3, replace(options, limit=max(made.peaks) - 1))],
        random.Random(0),
        0,
    )
    edges = graph.edges.tolist()
    for one in plans:
        check_graph_plan(edges, one)
    for number in range(2000):
        try:
            check_graph_plan(edges, damaged(plans[number % 2], rng))
        except JudgeError:
            refused += 1
    return [Row("W1", "2,000 damaged plans of messages are refused", f"{refused}", refused == 2000)]


def bars(_: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names."""
    return {
        "Q1": rows_in_few_bits,
        "Q2": choices_of_widths,
        "Q3": real.against_floats,
        "Q4": real.with_overlap,
        "Q5": real.forecasts,
        "Q6": time_to_encode,
        "W1": damaged_plans,
    }


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return print_asked("graphs", (bars,), arguments, console)
