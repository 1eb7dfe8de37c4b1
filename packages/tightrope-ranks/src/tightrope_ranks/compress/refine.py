"""What codecs, link and backward take in steps that run, and which plans are worth comparing then.

Idea        Costs that are measured alone miss what happens when everything runs together: the network takes
            the processors' time, memory is cold, the other rank is late. So each codec first runs twice for a
            few steps, in its own plan and in one with many more messages, or far fewer. What all messages of
            a plan took is messages times a fixed cost plus bytes times a rate: two plans give both. The
            backward is what passed between buckets, less what was encoded there. Ranks also wait for each
            other, and threads for processors: costs are scaled until both plans of a codec forecast the steps
            that were seen, the fixed ones by the plan with more messages, rates by the other one.
Guarantee   All ranks return equal problems; costs are finite and not negative.
Complexity  A few steps per codec, which train like any other.
Gaps        One rate per codec: that the first bytes after a pause travel faster, or that one codec slows the
            backward more than another, is averaged.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Final, TypeAlias

import torch
from msgspec.structs import replace
from torch import distributed

from tightrope.core import Bytes, InfeasibleError
from tightrope_ranks.compress.agree import slowest_stream
from tightrope_ranks.compress.calibrate import wait
from tightrope_ranks.compress.codecs import Group
from tightrope_ranks.compress.forecast import seconds_of, sent_of
from tightrope_ranks.compress.queue import MessageQueue
from tightrope_ranks.compress.simple import CAPS, by_cap, even
from tightrope_ranks.values.exchange import CodecCost, ExchangePlan, ExchangeProblem, Message

Planner: TypeAlias = Callable[[ExchangeProblem], ExchangePlan]
Cost: TypeAlias = tuple[float, float]
ROUNDS: Final = 5
"""Steps of each plan; their medians count."""
_MANY: Final = 512
NEAR: Final = 1.1
"""Times the forecast of the best plan: equal buckets that run, too, before a plan is chosen."""
NEIGHBOURS: Final = 3
"""Sizes of buckets that run, per codec."""
_SCALINGS: Final = 6
_MOST_SCALE: Final = 8.0


@dataclass(frozen=True, slots=True)
class StepSeen:
    """What one step took on this rank.

    Attributes:
        seconds: of all.
        messages: seconds to encode, to send and to decode each message.
        backward: seconds of the forward, then of the backward in front of each bucket.
    """

    seconds: float
    messages: tuple[tuple[float, float, float], ...]
    backward: tuple[float, ...]


class Rehearsal:
    """Plans of one codec each that run in turns, a few steps each.

    Args:
        plans: equal on all ranks.
    """

    def __init__(self, plans: Sequence[ExchangePlan]) -> None:
        self.plans = tuple(plans)
        self._seen: list[list[StepSeen]] = [[] for _ in plans]
        self._num = 0

    @property
    def over(self) -> bool:
        """Whether every plan had its steps."""
        return self._num == ROUNDS * len(self.plans)

    @property
    def plan(self) -> ExchangePlan:
        """What runs next."""
        return self.plans[self._num % len(self.plans)]

    def note(self, seen: StepSeen) -> None:
        """Take what the step took that ran `plan`."""
        self._seen[self._num % len(self.plans)].append(seen)
        self._num += 1

    def refined(
        self, problem: ExchangeProblem, ends: Sequence[int], queue: MessageQueue, group: Group
    ) -> ExchangeProblem:
        """Return the problem with costs and ready times as they were; every rank calls it.

        Args:
            problem: that the plans are of.
            ends: of the buckets.
            queue: of this rank.
            group: of the model.
        """
        steps = [list(accumulate(step.backward[1:])) for some in self._seen for step in some]
        before = median(step.backward[0] for some in self._seen for step in some)
        ready = [median(step[at] for step in steps) for at in range(len(ends))]
        stream, counts = problem.stream, [size // 4 for size in problem.stream.sizes]
        stream = slowest_stream(stream.names, counts, ends, (before, *ready), queue, group)
        totals, seconds = self._totals(queue, group)
        codecs = tuple(self._fitted(cost, totals, sum(stream.sizes)) for cost in problem.codecs)
        found = replace(problem, stream=stream, codecs=codecs)
        return replace(found, codecs=tuple(self._scaled(found, cost, seconds) for cost in codecs))

    def _totals(self, queue: MessageQueue, group: Group) -> tuple[list[list[float]], list[float]]:
        """Seconds to encode, send and decode all messages of each plan, and of its steps; medians of rounds.

        A message has arrived everywhere when the rank that was last has sent it: the shortest time is the
        wire's, the longer ones have waited for that rank. The processor's times are those of the slowest.
        """
        steps = [step for some in self._seen for step in some]
        slowest = torch.tensor(
            [row for step in steps for row in (*step.messages, (step.seconds, 0.0, 0.0))], dtype=torch.float64
        )
        wire = slowest[:, 1].clone()
        most, least = distributed.ReduceOp.MAX, distributed.ReduceOp.MIN
        wait(queue, lambda: distributed.all_reduce(slowest, most, group), "seconds of messages")
        wait(queue, lambda: distributed.all_reduce(wire, least, group), "seconds of messages")
        slowest[:, 1] = wire
        parts: Sequence[torch.Tensor] = torch.split(slowest, [len(step.messages) + 1 for step in steps])
        sums = torch.stack([part[:-1].sum(0) for part in parts]).view(len(self.plans), ROUNDS, 3)
        whole = torch.stack([part[-1, 0] for part in parts]).view(len(self.plans), ROUNDS)
        return sums.median(1).values.tolist(), whole.median(1).values.tolist()

    def _scaled(self, problem: ExchangeProblem, cost: CodecCost, seconds: Sequence[float]) -> CodecCost:
        """Scale the costs of a codec until its plans forecast what their steps took."""
        own = [
            (len(plan.messages), took, plan.messages)
            for plan, took in zip(self.plans, seconds, strict=True)
            if plan.messages[0].codec == cost.name
        ]
        if not own:
            return cost
        few, many = min(own, key=lambda one: one[0]), max(own, key=lambda one: one[0])
        scale = [1.0, 1.0]
        for _ in range(_SCALINGS):
            for part, (_, took, messages) in ((1, few), (0, many)):
                low, high = 1 / _MOST_SCALE, _MOST_SCALE
                for _ in range(20):
                    scale[part] = math.sqrt(low * high)
                    trial = replace(problem, codecs=(times(cost, *scale),))
                    if seconds_of(trial, messages) < took:
                        low = scale[part]
                    else:
                        high = scale[part]
        return times(cost, *scale)

    def _fitted(self, cost: CodecCost, totals: Sequence[Sequence[float]], size: Bytes) -> CodecCost:
        rows = [
            (len(plan.messages), seconds)
            for plan, seconds in zip(self.plans, totals, strict=True)
            if plan.messages[0].codec == cost.name
        ]
        if not rows:
            return cost
        encode, wire, decode = (
            fitted([(num, seconds[part]) for num, seconds in rows], size, old)
            for part, old in enumerate((cost.encode, cost.wire, cost.decode))
        )
        return replace(cost, encode=encode, wire=wire, decode=decode)


def times(cost: CodecCost, fixed: float, rate: float) -> CodecCost:
    """Return costs with all fixed ones, and all rates, so many times as large."""
    encode, wire, decode = ((fixed * one[0], rate * one[1]) for one in (cost.encode, cost.wire, cost.decode))
    return replace(cost, encode=encode, wire=wire, decode=decode)


def fitted(rows: Sequence[tuple[int, float]], size: Bytes, old: Cost) -> Cost:
    """Return seconds per message and per byte that fit what several divisions of equal bytes took.

    Args:
        rows: number of messages, and seconds of all of them; the fewest and the most messages count.
        size: bytes of each division.
        old: costs whose proportion is kept where all divisions have equally many messages.

    Example:
        >>> fitted([(1, 3.0), (5, 7.0)], 2, (0.0, 1.0))
        (1.0, 1.0)
        >>> fitted([(2, 8.0)], 4, (1.0, 0.5))
        (2.0, 1.0)
    """
    (few, quick), (many, long) = min(rows), max(rows)
    if few == many:
        was = old[0] * few + old[1] * size
        return (old[0] * quick / was, old[1] * quick / was) if was else (0.0, quick / size)
    fixed = min(max(0.0, (long - quick) / (many - few)), quick / few)
    return fixed, (quick - fixed * few) / size


def rehearsed(problem: ExchangeProblem, choose: Planner) -> list[ExchangePlan]:
    """Plan each codec alone, and add for each a division with many more messages, or far fewer."""
    found = []
    for codec in problem.codecs:
        try:
            plan = choose(replace(problem, codecs=(codec,)))
        except InfeasibleError:
            continue
        num, used = len(problem.stream.sizes), len(plan.messages)
        ends = even(problem.stream.sizes, min(num, _MANY) if 4 * used <= num else max(1, used // 4))
        messages = tuple(Message(end, codec.name) for end in ends)
        found += [replace(plan, bound=0.0), *_given(problem, messages, 0.0, "rehearsal")]
    return found


def compared(problem: ExchangeProblem, choose: Planner) -> list[ExchangePlan]:
    """Plan, and add the best plan of each codec alone, and its divisions into equal buckets that may be best.

    Forecasts that are right within 15 % cannot tell divisions apart that differ by 5 %, so a few sizes of
    buckets run, where they may be fastest for all that is known.
    """
    first = choose(problem)
    found = {first.messages: first}
    for codec in problem.codecs:
        for plan in _alone(problem, codec, choose, first):
            found.setdefault(plan.messages, plan)
    return list(found.values())


def _alone(
    problem: ExchangeProblem, codec: CodecCost, choose: Planner, first: ExchangePlan
) -> Iterator[ExchangePlan]:
    try:
        plan = choose(replace(problem, codecs=(codec,)))
    except InfeasibleError:
        return
    # the bound of all codecs holds for the problem, that of one may not
    yield replace(plan, bound=min(plan.bound, first.bound))
    divisions = {by_cap(problem.stream.sizes, cap) for cap in CAPS}
    buckets = [tuple(Message(end, codec.name) for end in ends) for ends in sorted(divisions)]
    forecasts = {one: seconds_of(problem, one) for one in buckets}
    best, *others = sorted(buckets, key=forecasts.__getitem__)
    near = [one for one in others[: NEIGHBOURS - 1] if forecasts[one] <= NEAR * first.seconds]
    for messages in (best, *near):
        yield from _given(problem, messages, first.bound, "buckets")


def _given(
    problem: ExchangeProblem, messages: tuple[Message, ...], bound: float, method: str
) -> Iterator[ExchangePlan]:
    """Yield a plan where it keeps the limits."""
    seconds, sent, limits = seconds_of(problem, messages), sent_of(problem, messages), problem.limits
    late = limits.seconds is not None and seconds > limits.seconds
    if not late and not (limits.sent is not None and sent > limits.sent):
        yield ExchangePlan(messages, seconds, sent, min(bound, seconds), method)
