"""Which gradients travel together, and by which codec: exact, with a proof.

Idea        Go through the gradients in order. What matters of the messages so far is a label: the clock of
            the processor, that clock with all decoding so far, the clock of the queue, when all that was sent
            will be decoded, and the bytes sent. A message moves each of them by sums and maxima alone, so a
            label that is nowhere better than another is dropped. So is one whose completion cannot beat the
            best that is known: simple divisions, then a beam. Clocks are first raised to what follows from
            the next gradient.
Source      The problem: Wang et al., Cupcake, MLSys 2023. The recursion over Pareto sets is this project's
            own.
Guarantee   Within the model (affine costs, one queue in order, decoding after all encoding) no plan is faster
            than ``bound``; where the labels fit, bound and seconds are equal. Never slower than any division
            of `simple.divisions` in any one codec that keeps the limit.
Complexity  N^2 transitions per label of a gradient and codec; labels grow with the codecs. Where it takes
            more than `MOST` comparisons the search is repeated with a gap of 1 %, 5 %, 15 % that it need not
            close.
Gaps        Collectives of one message are not overlapped with those of the next.
"""

import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from tightrope.core import Bytes, InfeasibleError, TightropeError
from tightrope.native.interface import missing
from tightrope_ranks.compress.fallback import best_messages as best_in_python
from tightrope_ranks.compress.forecast import seconds_of, sent_of
from tightrope_ranks.compress.fusion import best_messages
from tightrope_ranks.compress.simple import divisions
from tightrope_ranks.values.exchange import ExchangePlan, ExchangeProblem, Message

MOST: Final = 60_000_000
"""Comparisons of the exact search, about a third of a second; a third of it where a gap is left."""
_MOST_PYTHON: Final = 30_000
_BEAM: Final = 6
_GAPS: Final = (0.0, 0.01, 0.05, 0.15)
_MOST_GRADIENTS: Final = 20_000


def plan_exchange(problem: ExchangeProblem, *, exact: bool = True, native: bool = True) -> ExchangePlan:
    """Choose messages and codecs so that the step is as short as it can be.

    Args:
        problem: gradients in the order in which they become ready, the costs of codecs, and limits.
        exact: whether to prove the answer; without, the beam's answer with a bound by sums.
        native: whether C++ may be used.

    Returns:
        A plan that keeps the limits, with a proved bound.

    Raises:
        InfeasibleError: no plan keeps the limits; names the smallest figure that a plan reaches.
        TightropeError: the problem is not well formed.

    Example:
        >>> from tightrope_ranks.values.exchange import CodecCost, GradientStream
        >>> stream = GradientStream(("b", "a"), (4, 4), (1.0, 1.0))
        >>> none = CodecCost("none", (0.0, 0.0), (1.0, 0.5), (0.0, 0.0), (4, 4))
        >>> plan = plan_exchange(ExchangeProblem(stream, (none,)))
        >>> [message.end for message in plan.messages], plan.seconds, plan.gap
        ([1, 2], 7.0, 0.0)

    Source: `tightrope_ranks.compress.search`.
    """
    check_problem(problem)
    problem = _accurate(problem)
    native = native and not missing("fusion")
    messages, method = _start(problem)
    bound = lower_bound(problem)
    found = _searched(problem, messages, gap=0.0, width=_BEAM, native=native)
    if found and seconds_of(problem, found) < seconds_of(problem, messages):  # not by rounding alone
        messages, method = found, "beam"
    for gap in _GAPS if exact else ():
        proved = _searched(problem, messages, gap=gap, width=0, native=native)
        if proved is None:
            continue
        if proved and seconds_of(problem, proved) < seconds_of(problem, messages):
            messages = proved
        method = "exact" if gap == 0 else f"within {gap:.1%}"
        bound = max(bound, seconds_of(problem, messages) * (1 - gap))
        break
    seconds = seconds_of(problem, messages)
    limit = problem.limits.seconds
    if limit is not None and seconds > limit:
        raise InfeasibleError(
            f"a step of at most {limit * 1e3:.6g} ms was requested; the fastest plan found takes "
            f"{seconds * 1e3:.6g} ms (proved >= {bound * 1e3:.6g} ms). Allow a codec that sends less "
            f"({', '.join(one.name for one in problem.codecs)} are allowed), a faster link, or more time."
        )
    return ExchangePlan(tuple(messages), seconds, sent_of(problem, messages), min(bound, seconds), method)


def lower_bound(problem: ExchangeProblem) -> float:
    """Seconds that no plan of the problem can stay below: sums over the processor, and over the queue."""
    stream, codecs, whole = problem.stream, problem.codecs, sum(problem.stream.sizes)
    first, last = stream.sizes[0], stream.sizes[-1]
    backward = stream.before + sum(stream.compute)
    processor = backward + min(_line(one.encode, whole) + _line(one.decode, whole) for one in codecs)
    wire = min(_line(one.wire, whole) for one in codecs)
    queue = stream.before + stream.compute[0] + min(_line(one.encode, first) for one in codecs) + wire
    tail = (
        backward
        + min(_line(one.encode, whole) for one in codecs)
        + min(_line(one.wire, last) for one in codecs)
    )
    decode = min(_line(one.decode, last) for one in codecs)
    return max(processor, queue + decode, tail + decode)


def _line(cost: tuple[float, float], size: Bytes) -> float:
    return cost[0] + cost[1] * size


def _starts(problem: ExchangeProblem) -> Iterator[tuple[str, list[Message]]]:
    for name, ends in divisions(problem.stream.sizes):
        for codec in problem.codecs:
            yield f"{name}, {codec.name}", [Message(end, codec.name) for end in ends]


def _start(problem: ExchangeProblem) -> tuple[list[Message], str]:
    """The fastest simple plan that sends no more than the limit; else one that sends least."""
    limit = problem.limits.sent
    best: tuple[float, list[Message], str] | None = None
    for name, messages in _starts(problem):
        if limit is None or sent_of(problem, messages) <= limit:
            seconds = seconds_of(problem, messages)
            if best is None or seconds < best[0]:
                best = (seconds, messages, name)
    if best is not None:
        return best[1], best[2]
    messages = _smallest(problem)
    if limit is not None and sent_of(problem, messages) > limit:
        raise InfeasibleError(
            f"at most {limit} bytes per step and rank are allowed; the codecs "
            f"{', '.join(one.name for one in problem.codecs)} send at least {sent_of(problem, messages)}. "
            "Allow a codec that sends less, or more bytes.",
            asked=limit,
            smallest_found=sent_of(problem, messages),
            lower_bound=sent_of(problem, messages),
        )
    return messages, "fewest bytes"


def _smallest(problem: ExchangeProblem) -> list[Message]:
    """Send each gradient by the codec that sends least of it."""
    num = len(problem.stream.sizes)
    least = [min(problem.codecs, key=lambda one: one.sent[number]).name for number in range(num)]
    ends = [number for number in range(1, num) if least[number] != least[number - 1]]
    return [Message(end, least[end - 1]) for end in (*ends, num)]


def _searched(
    problem: ExchangeProblem, known: list[Message], *, gap: float, width: int, native: bool
) -> list[Message] | None:
    search, most = (best_messages, MOST) if native else (best_in_python, _MOST_PYTHON)
    most = most // 3 if gap else most
    found = search(problem, upper=seconds_of(problem, known), gap=gap, width=width, most=most)
    return None if found is None else [Message(end, problem.codecs[codec].name) for end, codec in found]


def _accurate(problem: ExchangeProblem) -> ExchangeProblem:
    """Leave out the codecs whose error is above the limit."""
    limit = problem.limits.error
    if limit is None:
        return problem
    codecs = tuple(one for one in problem.codecs if one.error <= limit)
    if not codecs:
        best = min(problem.codecs, key=lambda one: one.error)
        raise InfeasibleError(
            f"A relative error of at most {limit:g} is allowed; {best.name!r}, the most exact codec, has "
            f"{best.error:.3g}. Allow a larger error, or the codec 'none'."
        )
    return replace(problem, codecs=codecs)


def check_problem(problem: ExchangeProblem) -> None:
    """Refuse a problem whose parts do not fit together.

    Raises:
        TightropeError: says which.
    """
    stream, codecs = problem.stream, problem.codecs
    num = len(stream.sizes)
    if not 0 < num <= _MOST_GRADIENTS or not len(stream.names) == len(stream.compute) == num:
        raise TightropeError(
            f"the stream has {len(stream.names)} names, {num} sizes and {len(stream.compute)} times. Give "
            f"one of each per gradient, for 1 to {_MOST_GRADIENTS} gradients."
        )
    costs = [x for one in codecs for x in (*one.encode, *one.wire, *one.decode, one.error)]
    if not codecs or any(len(one.sent) != num for one in codecs):
        raise TightropeError(
            f"codecs {[one.name for one in codecs]}: give one or more, each with {num} sizes."
        )
    if len({one.name for one in codecs}) != len(codecs):
        raise TightropeError(f"codecs {[one.name for one in codecs]}: each may be given once.")
    if not all(math.isfinite(x) and x >= 0 for x in (*costs, *stream.compute, *stream.sizes, stream.before)):
        raise TightropeError("seconds, bytes and errors of an exchange must be finite and >= 0.")
