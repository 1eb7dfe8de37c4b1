"""What all ranks have to find equal: when gradients are ready, the plans, and which of them is fastest.

Every function here is called by all ranks at the same place, through their queues.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch
from msgspec.structs import replace
from torch import distributed

from tightrope.core import InfeasibleError, TightropeError
from tightrope.core.exchange import (
    ExchangePlan,
    ExchangeProblem,
    GradientStream,
    dump_exchange,
    load_exchange,
)
from tightrope.parallel.compress.calibrate import wait
from tightrope.parallel.compress.codecs import Group
from tightrope.parallel.compress.queue import MessageQueue

_REFUSED = "rank 0 found no plan within the limits; its message names what is possible."


def slowest_stream(
    names: Sequence[str],
    counts: Sequence[int],
    ends: Sequence[int],
    times: Sequence[float],
    queue: MessageQueue,
    group: Group,
) -> GradientStream:
    """Return the stream of gradients on the slowest rank.

    Args:
        names: of the gradients.
        counts: numbers in each.
        ends: of buckets.
        times: seconds of the forward, and from there until each bucket was ready, on this rank.
        queue: of this rank.
        group: of all ranks.
    """
    slowest = torch.tensor(times, dtype=torch.float64)
    most = distributed.ReduceOp.MAX
    wait(queue, lambda: distributed.all_reduce(slowest, most, group), "times of buckets")
    before, *ready = slowest.tolist()
    compute = [0.0] * len(names)
    first, clock = 0, 0.0
    for at, end in zip(ready, ends, strict=True):
        compute[first] += max(at - clock, 0.0)
        first, clock = end, max(at, clock)
    return GradientStream(tuple(names), tuple(4 * count for count in counts), tuple(compute), before)


def shared_plans(
    problem: ExchangeProblem,
    choose: Callable[[ExchangeProblem], ExchangePlan],
    queue: MessageQueue,
    group: Group,
    *,
    several: bool,
) -> list[ExchangePlan]:
    """Plan on rank 0, and tell the others; a refusal is told to all.

    Args:
        problem: equal on all ranks.
        choose: the planner.
        queue: of this rank.
        group: of all ranks.
        several: whether to add the best plan of each codec alone.

    Raises:
        TightropeError: no plan keeps the limits.
    """
    plans: list[ExchangePlan] = []
    error: TightropeError | None = None
    if distributed.get_rank(group) == 0:
        try:
            plans = _planned(problem, choose, several=several)
        except TightropeError as refused:
            error = refused
    num = torch.tensor([len(plans)])
    wait(queue, lambda: distributed.broadcast(num, group_src=0, group=group), "the number of plans")
    if error is not None:
        raise error
    if not int(num):
        raise TightropeError(_REFUSED)
    texts = [dump_exchange(plan) for plan in plans] or [b""] * int(num)
    return [load_exchange(_told(text, queue, group)) for text in texts]


def _planned(
    problem: ExchangeProblem, choose: Callable[[ExchangeProblem], ExchangePlan], *, several: bool
) -> list[ExchangePlan]:
    plans = [choose(problem)]
    for codec in problem.codecs if several else ():
        try:
            plan = choose(replace(problem, codecs=(codec,)))
        except InfeasibleError:
            continue
        bound = min(plan.bound, plans[0].bound)  # that of all codecs holds for the problem, a codec's may not
        if plan.messages not in [one.messages for one in plans]:
            plans.append(replace(plan, bound=bound))
    return plans


def _told(text: bytes, queue: MessageQueue, group: Group) -> bytes:
    size = torch.tensor([len(text)])
    wait(queue, lambda: distributed.broadcast(size, group_src=0, group=group), "a plan's size")
    data = torch.frombuffer(bytearray(text or bytes(int(size))), dtype=torch.uint8)
    wait(queue, lambda: distributed.broadcast(data, group_src=0, group=group), "a plan")
    return bytes(data.numpy())


class PlanContest:
    """Plans that run in turns, each a few steps, until the fastest is known.

    Args:
        plans: the first one begins.
        trials: steps of each.
    """

    def __init__(self, plans: Sequence[ExchangePlan], trials: int) -> None:
        self.plans, self.trials = tuple(plans), trials
        self._seen: list[float] = []

    @property
    def over(self) -> bool:
        """Whether every plan had its steps."""
        return len(self._seen) == self.trials * len(self.plans)

    def next_plan(self, seconds: float, queue: MessageQueue, group: Group) -> ExchangePlan:
        """Take the seconds of a step, and return the plan of the next one."""
        self._seen.append(seconds)
        if not self.over:
            return self.plans[len(self._seen) % len(self.plans)]
        num = len(self.plans)
        medians = torch.tensor([median(self._seen[at::num]) for at in range(num)], dtype=torch.float64)
        most = distributed.ReduceOp.MAX
        wait(queue, lambda: distributed.all_reduce(medians, most, group), "seconds of plans")
        return self.plans[int(medians.argmin())]
