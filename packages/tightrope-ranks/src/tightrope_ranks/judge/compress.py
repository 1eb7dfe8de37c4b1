"""Check a plan for the exchange of gradients, and what the ranks did with it.

Idea        Play the plan event by event, with the clocks of the processor and of the queue, and compare.
Guarantee   An accepted plan sends every gradient once, in messages of neighbours, by codecs of the problem,
            and takes the seconds and bytes that it claims, within the limits. Its bound is not above its
            seconds; `exhaustive` compares the bound with every plan there is. Logs are accepted exactly when
            all ranks issued the same messages in the same order, and each all of its gradients: then none
            waits for ever.
Complexity  Linear in gradients; exhaustive: exponential.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from tightrope.core.errors import JudgeError
from tightrope_ranks.values.exchange import CodecCost, ExchangePlan, ExchangeProblem

_CLOSE = 1e-9
_MOST_PLANS = 2_000_000


def check_exchange(problem: ExchangeProblem, plan: ExchangePlan, *, exhaustive: bool = False) -> None:
    """Refuse a plan that is incomplete, breaks a limit, or claims a wrong figure.

    Args:
        problem: that was planned.
        plan: to be checked.
        exhaustive: whether every other plan is played too, to check the bound.

    Raises:
        JudgeError: says what is wrong.
    """
    chosen = _chosen(problem, plan)
    ends = [message.end for message in plan.messages]
    seconds, sent = _play(problem, ends, chosen)
    if not math.isclose(plan.seconds, seconds, rel_tol=_CLOSE, abs_tol=1e-12):
        raise JudgeError(f"exchange: the plan claims {plan.seconds!r} s; played, it takes {seconds!r} s.")
    if plan.sent != sent:
        raise JudgeError(f"exchange: the plan claims {plan.sent} bytes sent; its messages have {sent}.")
    limits = problem.limits
    rough = next((one for one in chosen if not _exact_enough(problem, one)), None)
    if rough is not None:
        raise JudgeError(
            f"exchange: codec {rough.name!r} has a relative error of {rough.error!r}; the limit is "
            f"{limits.error!r}."
        )
    if limits.sent is not None and sent > limits.sent:
        raise JudgeError(f"exchange: {sent} bytes are sent; the limit is {limits.sent}.")
    if limits.seconds is not None and seconds > limits.seconds * (1 + _CLOSE):
        raise JudgeError(f"exchange: the step takes {seconds!r} s; the limit is {limits.seconds!r} s.")
    if not 0 <= plan.bound <= seconds * (1 + _CLOSE):
        raise JudgeError(f"exchange: the bound of {plan.bound!r} s is not within [0, {seconds!r}].")
    if exhaustive:
        best = _best(problem)
        if plan.bound > best * (1 + _CLOSE):
            raise JudgeError(f"exchange: a bound of {plan.bound!r} s is claimed; a plan takes {best!r} s.")


def check_queues(num_gradients: int, logs: Sequence[Sequence[tuple[int, int, str, int]]]) -> None:
    """Refuse ranks that would wait for each other for ever, or that left a gradient out.

    Args:
        num_gradients: of one backward.
        logs: per rank, the messages of one backward in the order in which it issued them: first gradient,
            first behind, codec, bytes of the message.

    Raises:
        JudgeError: names the rank and the message.
    """
    for rank, log in enumerate(logs):
        at = 0
        for number, (start, end, codec, size) in enumerate(log):
            if start != at or end <= start or end > num_gradients:
                raise JudgeError(
                    f"exchange: rank {rank} sent gradients [{start}, {end}) as message {number}; "
                    f"gradient {at} of {num_gradients} was next."
                )
            if number >= len(logs[0]) or logs[0][number] != (start, end, codec, size):
                raise JudgeError(
                    f"exchange: message {number} of rank {rank} is {(start, end, codec, size)}, which rank 0 "
                    "did not issue at that place: both would wait."
                )
            at = end
        if at != num_gradients:
            raise JudgeError(f"exchange: rank {rank} stopped at gradient {at} of {num_gradients}.")


def _chosen(problem: ExchangeProblem, plan: ExchangePlan) -> list[CodecCost]:
    codecs = {codec.name: codec for codec in problem.codecs}
    num = len(problem.stream.sizes)
    ends = [0, *(message.end for message in plan.messages)]
    if any(before >= after for before, after in pairwise(ends)) or ends[-1] != num:
        raise JudgeError(f"exchange: messages end at {ends[1:]}: not a division of {num} gradients.")
    unknown = next((one.codec for one in plan.messages if one.codec not in codecs), None)
    if unknown is not None:
        raise JudgeError(f"exchange: codec {unknown!r} is none of the problem's: {', '.join(codecs)}.")
    return [codecs[message.codec] for message in plan.messages]


def _exact_enough(problem: ExchangeProblem, codec: CodecCost) -> bool:
    return problem.limits.error is None or codec.error <= problem.limits.error


def _play(problem: ExchangeProblem, ends: Sequence[int], chosen: Sequence[CodecCost]) -> tuple[float, int]:
    stream = problem.stream
    processor = stream.before
    free = 0.0
    arrived: list[tuple[float, float]] = []
    sent = at = 0
    for end, codec in zip(ends, chosen, strict=True):
        size = 0
        for gradient in range(at, end):
            processor += stream.compute[gradient]
            size += stream.sizes[gradient]
            sent += codec.sent[gradient]
        processor += codec.encode[0] + codec.encode[1] * size
        free = max(free, processor) + codec.wire[0] + codec.wire[1] * size
        arrived.append((free, codec.decode[0] + codec.decode[1] * size))
        at = end
    for arrival, decode in arrived:
        processor = max(processor, arrival) + decode
    return processor, sent


def _best(problem: ExchangeProblem) -> float:
    """The seconds of the fastest plan that sends no more than the limit."""
    num = len(problem.stream.sizes)
    codecs = [one for one in problem.codecs if _exact_enough(problem, one)]
    if (len(codecs) + 1) ** (num - 1) * len(codecs) > _MOST_PLANS:
        raise JudgeError(f"exchange: {num} gradients have too many plans to play them all.")
    best = math.inf
    for number in range((len(codecs) + 1) ** (num - 1) * len(codecs)):
        last, rest = number % len(codecs), number // len(codecs)
        ends, chosen = [], []
        for gradient in range(num - 1):
            rest, digit = divmod(rest, len(codecs) + 1)
            if digit:
                ends.append(gradient + 1)
                chosen.append(codecs[digit - 1])
        seconds, sent = _play(problem, [*ends, num], [*chosen, codecs[last]])
        if problem.limits.sent is None or sent <= problem.limits.sent:
            best = min(best, seconds)
    return best
