"""What all ranks have to find equal: when gradients are ready, the plans, and which of them is fastest.

Every function here is called by all ranks at the same place, through their queues.
"""

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import TightropeError
from tightrope_ranks.compress.calibrate import wait
from tightrope_ranks.compress.codecs import Group
from tightrope_ranks.compress.queue import MessageQueue
from tightrope_ranks.values.exchange import (
    ExchangePlan,
    GradientStream,
    dump_exchange,
    load_exchange,
)
from tightrope_shared.select import Selector

_Checked = TypeVar("_Checked")
_DOUBT: Final = 0.15
"""Of forecasts, relative, before plans are compared."""
_NOISE: Final = 0.1
"""Of the seconds of one step, relative, until steps of a plan have told."""
_TOLERANCE: Final = 0.01
_CONNECT: Final = timedelta(minutes=30)
"""For ranks to meet, as in torch; messages have the time-out of the queue."""
_REFUSED: Final = "rank 0 found no plan within the limits; its message names what is possible."


def own_group(group: Group) -> Group:
    """Connect the ranks of a group once more, for messages that no other collective of theirs waits for.

    Only the ranks of the group call it. ``distributed.new_group`` would not do: it is for all ranks of the
    world, and with ``use_local_synchronization=True`` it waits for ever where ranks have made different
    numbers of groups.

    Args:
        group: of a model.
    """
    store, rank, ranks = group.get_group_store(), group.rank(), group.size()
    number = store.add(f"tightrope/num_exchanges/{rank}", 1)
    mine = distributed.PrefixStore(f"tightrope/exchange/{number}", store)  # type: ignore[attr-defined]
    found: Any = distributed.ProcessGroupGloo(mine, rank, ranks, _CONNECT)
    return cast("Group", found)


def checked_on_all(
    check: Callable[[], _Checked], otherwise: TightropeError, queue: MessageQueue, group: Group
) -> _Checked:
    """Return what a check returns on this rank, where no rank refuses.

    Args:
        check: raises where this rank refuses; what it raises is raised once the others are told.
        otherwise: raised where only other ranks refuse.
        queue: of this rank.
        group: of the model.
    """
    refusal: Exception | None = None
    try:
        found = check()
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        refusal = error
    most = torch.tensor([refusal is not None], dtype=torch.uint8)
    wait(queue, lambda: distributed.all_reduce(most, distributed.ReduceOp.MAX, group), "a refusal")
    if refusal is not None:
        raise refusal
    if int(most):
        raise otherwise
    return found


def met(model: DistributedDataParallel, check: Callable[[], _Checked]) -> tuple[_Checked, Group]:
    """Connect the ranks of a model where none refuses the call, and return what the check returned.

    Args:
        model: of this call; the check refuses one that is not wrapped.
        check: of this rank's model and arguments.
    """
    if not isinstance(model, DistributedDataParallel):
        check()  # raises: there are no ranks to tell
    group, queue = own_group(model.process_group), MessageQueue()
    others = TightropeError(
        "Another rank refused its model or arguments of compress_gradients. See the message of that rank."
    )
    try:
        return checked_on_all(check, others, queue, group), group
    finally:
        queue.close()


def equal_on_all(value: str, queue: MessageQueue, group: Group) -> bool:
    """Say whether all ranks came here with one value.

    Args:
        value: of this rank.
        queue: of this rank.
        group: of the model.
    """
    number = zlib.crc32(value.encode())
    most = torch.tensor([number, -number])
    wait(queue, lambda: distributed.all_reduce(most, distributed.ReduceOp.MAX, group), "a comparison")
    return int(most[0]) == -int(most[1])


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
        group: of the model.
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
    make: Callable[[], list[ExchangePlan]], queue: MessageQueue, group: Group
) -> list[ExchangePlan]:
    """Plan on rank 0, and tell the others; a refusal is told to all.

    Args:
        make: plans, at least one; called on rank 0.
        queue: of this rank.
        group: of the model.

    Raises:
        TightropeError: no plan keeps the limits.
    """
    plans: list[ExchangePlan] = []
    error: TightropeError | None = None
    if group.rank() == 0:
        try:
            plans = make()
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


def _told(text: bytes, queue: MessageQueue, group: Group) -> bytes:
    size = torch.tensor([len(text)])
    wait(queue, lambda: distributed.broadcast(size, group_src=0, group=group), "a plan's size")
    data = torch.frombuffer(bytearray(text or bytes(int(size))), dtype=torch.uint8)
    wait(queue, lambda: distributed.broadcast(data, group_src=0, group=group), "a plan")
    return bytes(data.numpy())


class PlanContest:
    """Plans that run until one is known to be the fastest, those most often that may be it.

    Args:
        plans: with forecasts, which say where to look first.
        trials: steps per plan at most, on average.
    """

    def __init__(self, plans: Sequence[ExchangePlan], trials: int) -> None:
        self.plans = tuple(plans)
        self._selector = Selector(
            len(plans), prior=[plan.seconds for plan in plans], prior_sd=_DOUBT, noise_sd=_NOISE, logs=True,
            tolerance=_TOLERANCE, max_looks=trials * len(plans),
        )  # fmt: skip
        self._next = self._selector.ask()

    @property
    def over(self) -> bool:
        """Whether it is known."""
        return self._next is None

    @property
    def plan(self) -> ExchangePlan:
        """What runs next; once it is over, what was fastest."""
        return self.plans[self._selector.choose().candidate if self._next is None else self._next]

    def note(self, seconds: float, queue: MessageQueue, group: Group) -> None:
        """Take the seconds of the step that ran `plan`; every rank calls it, and the slowest counts."""
        assert self._next is not None
        slowest = torch.tensor([seconds], dtype=torch.float64)
        most = distributed.ReduceOp.MAX
        wait(queue, lambda: distributed.all_reduce(slowest, most, group), "seconds of a plan")
        self._selector.tell(self._next, float(slowest))
        self._next = self._selector.ask()
