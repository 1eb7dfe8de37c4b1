"""Search by one rule after another, as TASO does: peers of `extract`, on the same e-graph and costs.

Idea        A move is one use of a rule: the classes that it united take the nodes that it added. Backtracking
            keeps a queue of forms, and follows those that cost up to ``alpha`` times the best. A restart begins
            with random moves.
Source      TASO (SOSP 2019): alpha 1.05 and a budget of 100 forms
Guarantee   Never worse than the input.
Complexity  Forms times moves times the size of a form.
"""

import heapq
import random
from collections.abc import Iterator

from tightrope_forms.rewrite.extract import Choice, Costs


def _moved(costs: Costs, choice: Choice) -> Iterator[Choice]:
    graph = costs.graph
    for moves in graph.applied:
        fresh = {graph.find(one): node for one, node in moves}
        if any(choice[one] != node for one, node in fresh.items()):
            yield {**choice, **fresh}


def greedy(costs: Costs, *, alpha: float = 1.0, budget: int = 100) -> tuple[Choice, float]:
    """Follow the cheapest forms first.

    Args:
        costs: of forms.
        alpha: forms that cost up to so many times the best are followed.
        budget: of forms that are followed.
    """
    given = costs.given()
    best, least, number = given, costs.of(given), 0
    queue, seen = [(least, 0, given)], {frozenset(given.items())}
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


def restarted(costs: Costs, *, restarts: int = 8, moves: int = 6, seed: int = 0) -> tuple[Choice, float]:
    """Begin several times with random moves, and take each move that costs less from there."""
    draw, given = random.Random(seed), costs.given()
    best, least = given, costs.of(given)
    for _ in range(restarts):
        choice = given
        for _ in range(moves):
            choice = draw.choice(list(_moved(costs, choice)) or [choice])
        cost = costs.of(choice)
        while True:
            options = [(costs.of(other), number, other) for number, other in enumerate(_moved(costs, choice))]
            nearest = min(options, default=(cost, 0, choice))
            if nearest[0] >= cost:
                break
            cost, _, choice = nearest
        if cost < least:
            best, least = choice, cost
    return best, least
