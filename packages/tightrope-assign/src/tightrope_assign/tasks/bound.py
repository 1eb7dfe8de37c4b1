"""Lower bounds on the makespan.

Idea        Paths: a task ends on a device no earlier than its slowest parent allows, where each parent may
            choose its device anew; heads and tails of such chains are added up at every task. Loads: device
            times, weighted by prices, sum to at most the makespan times all prices; prices grow where load
            is high.
Source      Relaxation of the disjunctive graph; multiplicative weights for the dual of the load program
Guarantee   No plan ends earlier. The judge derives both anew, the second from the prices in the plan.
Complexity  O(edges * devices^2) in numpy; above 5e7 pairs messages are left out.
Gaps        Bytes do not enter. With few devices and long messages the bound is loose.
"""

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Nanoseconds
from tightrope_assign.tasks.problem import TaskProblem

_MOST_PAIRS = 50_000_000
_ROUNDS = 60
_SCALE = 1_000_000


def lower_bound(problem: TaskProblem) -> tuple[Nanoseconds, tuple[int, ...]]:
    """Return a bound, and the prices that it follows from; empty = all alike."""
    load, prices = _load_bound(problem)
    return max(_path_bound(problem), load), prices


def _times(problem: TaskProblem) -> NDArray[np.float64]:
    cost = np.array(problem.cost, np.float64)
    cost[cost < 0] = np.inf
    return cost


def _path_bound(problem: TaskProblem) -> Nanoseconds:
    cost = _times(problem)
    num = problem.num_devices
    link = np.array(problem.link)
    travel = np.array(problem.travel or ((0,),), np.float64)
    if num * num * len(problem.travel) > _MOST_PAIRS:
        travel = np.zeros_like(travel)

    def chains(order: tuple[int, ...], edges: tuple[tuple[tuple[int, int], ...], ...]) -> NDArray[np.float64]:
        ends = cost.copy()
        for task in order:
            begin = np.zeros(num)
            for other, edge in edges[task]:
                np.maximum(begin, (ends[other][None, :] + travel[edge][link]).min(1), out=begin)
            ends[task] += begin
        return ends

    heads, tails = chains(problem.order, problem.parents), chains(problem.order[::-1], problem.children)
    with np.errstate(invalid="ignore"):  # inf - inf where a task does not run
        return int(np.nanmin(heads + tails - cost, 1).max())


def _load_bound(problem: TaskProblem) -> tuple[Nanoseconds, tuple[int, ...]]:
    cost = _times(problem)
    prices = np.full(problem.num_devices, 1.0)
    best: tuple[int, tuple[int, ...]] = (_priced(problem, ()), ())
    for step in range(_ROUNDS):
        scaled = cost * prices
        chosen = scaled.argmin(1)
        load = np.bincount(chosen, cost[np.arange(len(chosen)), chosen], problem.num_devices)
        if not load.max():
            break
        prices *= np.exp(load / load.max() / np.sqrt(step + 1))
        prices /= prices.sum()
        whole = tuple(int(price * _SCALE) for price in prices)
        best = max(best, (_priced(problem, whole), whole), key=lambda pair: pair[0])
    return best


def _priced(problem: TaskProblem, prices: tuple[int, ...]) -> Nanoseconds:
    weights = prices or (1,) * problem.num_devices
    if not sum(weights):
        return 0
    total = sum(min(weights[d] * ns for d, ns in enumerate(row) if ns >= 0) for row in problem.cost)
    return -(-total // sum(weights))
