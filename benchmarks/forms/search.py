"""Search by one rule after another, as TASO does: peers of `extract`, on the same e-graph and costs.

Idea        A move is one use of a rule: the classes that it united take the nodes that it added.
            Backtracking keeps a queue of forms, and follows those that cost up to ``alpha`` times the best. A
            restart begins with random moves.
Source      TASO (SOSP 2019): alpha 1.05 and a budget of 100 forms
Guarantee   Never worse than the input.
Complexity  Forms times moves times the size of a form.
"""

import heapq
import random
from collections.abc import Iterator

from tightrope_forms.rewrite.extract import Choice, FormCosts


def _moved(costs: FormCosts, choice: Choice) -> Iterator[Choice]:
    graph = costs.graph
    for moves in graph.applied:
        fresh = {graph.find(one): node for one, node in moves}
        if any(choice[one] != node for one, node in fresh.items()):
            yield {**choice, **fresh}


def steepest(costs: FormCosts, start: Choice | None = None) -> tuple[Choice, float]:
    """Take the move that saves most, until none saves: greedy substitution."""
    choice = start or costs.given()
    cost = costs.of(choice)
    while True:
        options = [(costs.of(other), number, other) for number, other in enumerate(_moved(costs, choice))]
        nearest = min(options, default=(cost, 0, choice))
        if nearest[0] >= cost:
            return choice, cost
        cost, _, choice = nearest


def backtracked(costs: FormCosts, *, alpha: float = 1.05, budget: int = 100) -> tuple[Choice, float]:
    """Follow the cheapest forms first, also those that cost more for a while.

    Args:
        costs: of forms.
        alpha: forms that cost up to so many times the best are followed.
        budget: of forms that are followed.
    """
    best = costs.given()
    least, number = costs.of(best), 0
    queue, seen = [(least, 0, best)], {frozenset(best.items())}
    for _ in range(budget):
        if not queue:
            break
        _, _, choice = heapq.heappop(queue)
        for other in _moved(costs, choice):
            key = frozenset(other.items())
            if key in seen:
                continue
            seen.add(key)
            cost, number = costs.of(other), number + 1
            if cost < least:
                best, least = other, cost
            if cost < alpha * least or other is best:
                heapq.heappush(queue, (cost, number, other))
    return best, least


def restarted(costs: FormCosts, *, restarts: int = 8, moves: int = 6, seed: int = 0) -> tuple[Choice, float]:
    """Begin several times with random moves, and be greedy from there."""
    draw = random.Random(seed)
    best, least = steepest(costs)
    for _ in range(restarts):
        choice = costs.given()
        for _ in range(moves):
            choice = draw.choice(list(_moved(costs, choice)) or [choice])
        if costs.of(choice) < float("inf"):
            choice, cost = steepest(costs, choice)
            best, least = (choice, cost) if cost < least else (best, least)
    return best, least
