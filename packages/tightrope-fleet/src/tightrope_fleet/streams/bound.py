"""No plan scores more than this.

Idea        Give every processor a price per nanosecond. A frame of model m on processor p earns at most
            `gain = factor x EN x RT`, where RT is that of a frame that starts as it appears. Whatever
            a plan does, what frames earn is at most what they earn beyond the price of their time, plus the
            price of all the time there is: `sum_p price_p x T + sum_m n_m max(0, max_p gain - price_p x ns)`.
            Frames that end more than a millisecond late earn next to nothing; that is added for all.
Source      Lagrangian relaxation (linear programming duality) of the assignment of frames to processors.
Guarantee   Holds for any prices that are not negative, so the judge needs no solver: it takes the prices from
            the plan and adds up again.
Complexity  O(models x processors) per price vector.
Gaps        Overlap in time, order and dependencies are not in it.
"""

from collections.abc import Sequence

from tightrope_fleet.streams.frames import MS, StreamCase
from tightrope_fleet.streams.score import frugality, realtime

_LATE = realtime(MS)
_OVERLAP = 10_200
"""Nanoseconds that the reference may let two frames overlap: its tolerance, and single precision."""
_ROUNDS = 60


def gains(case: StreamCase) -> tuple[list[list[float]], float]:
    """By model and processor, the most that a frame adds to the score; and what late frames add together."""
    models = case.scenario.models
    fewest = [_fewest(case, m) for m in range(len(models))]
    num_models = max(1, sum(count > 0 for count in fewest))
    found: list[list[float]] = []
    late = 0.0
    for m, model in enumerate(models):
        share = 100 / num_models / max(1, fewest[m])
        late += sum(case.wanted[m]) * share * _LATE
        slack = max((e - r for r, e in zip(case.release[m], case.deadline[m], strict=True)), default=0.0)
        costs = [processor.costs[model.name] for processor in case.machine.processors]
        quality = 1.0 if case.compatible else model.quality
        found.append(
            [
                share
                * quality
                * max(0.0, frugality(cost.mj, clamped=not case.compatible))
                * realtime(cost.ns - slack * (MS if case.compatible else 1))
                for cost in costs
            ]
        )
    return found, late


def _fewest(case: StreamCase, m: int) -> int:
    """Fewest frames that the score divides by: in compatible rules, those that cannot be open at the end."""
    if not case.compatible:
        return sum(case.wanted[m])
    last = max(row[-1] for row in case.release if row)
    over = sum(w and d < last for w, d in zip(case.wanted[m], case.deadline[m], strict=True))
    return over - len(case.machine.processors)


def bound_at(case: StreamCase, prices: Sequence[float]) -> float:
    """Bound for given prices, one per processor, score per nanosecond."""
    worth, total = gains(case)
    scale = MS if case.compatible else 1
    end = max((row[-1] for row in case.deadline if row), default=0.0) * scale + MS
    total += sum(prices) * end
    for m, model in enumerate(case.scenario.models):
        costs = [processor.costs[model.name].ns for processor in case.machine.processors]
        beyond = max(
            gain - price * max(0, ns - (_OVERLAP if case.compatible else 0))
            for gain, price, ns in zip(worth[m], prices, costs, strict=True)
        )
        total += sum(case.wanted[m]) * max(0.0, beyond)
    return min(100.0, total)


def prices_of(case: StreamCase) -> tuple[float, ...]:
    """Find prices that make the bound small: one processor after the other, by golden section."""
    worth, _ = gains(case)
    most = [
        max(
            (worth[m][p] / processor.costs[model.name].ns for m, model in enumerate(case.scenario.models)),
            default=0.0,
        )
        for p, processor in enumerate(case.machine.processors)
    ]
    best = [0.0] * len(most)
    for start in (0.0, 0.25, 0.5, 1.0):
        prices = [start * price for price in most]
        for _ in range(4):
            for p in range(len(prices)):
                prices[p] = _line(case, prices, p, most[p])
        if bound_at(case, prices) < bound_at(case, best):
            best = prices
    return tuple(best)


def _line(case: StreamCase, prices: list[float], p: int, most: float) -> float:
    low, high = 0.0, most
    at = list(prices)

    def value(price: float) -> float:
        at[p] = price
        return bound_at(case, at)

    for _ in range(_ROUNDS):
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        if value(left) <= value(right):
            high = right
        else:
            low = left
        if high - low < 1e-6 * most:
            break
    return min((0.0, (low + high) / 2), key=value)
