"""What a plan for the exchange of gradients takes: seconds, bytes, and when everything happens.

Idea        One clock for the processor and one for the queue. The processor runs the backward, encodes a
            message when its last gradient is ready, and decodes in order once everything is encoded.
Guarantee   These are the figures that a plan claims; the judge plays the plan on its own.
Complexity  Linear in gradients.
Gaps        The queue takes none of the processor's time; transfers do not slow each other down.
"""

from collections.abc import Sequence
from typing import Literal

from tightrope.core import Bytes
from tightrope_ranks.values.exchange import CodecCost, ExchangeProblem, Message
from tightrope_shared.draw import WorkEvent, WorkTrace

Where = Literal["processor", "queue"]
Span = tuple[float, float, Where, str, int]
"""Start, end, where, what, and number of the message; -1 for the backward."""


def spans(problem: ExchangeProblem, messages: Sequence[Message]) -> list[Span]:
    """List what happens, in seconds from the start of the step.

    Args:
        problem: that is planned.
        messages: a division of its gradients.
    """
    stream, codecs = problem.stream, {codec.name: codec for codec in problem.codecs}
    clock, queue, start = stream.before, 0.0, 0
    found: list[Span] = [(0.0, clock, "processor", "before", -1)] if clock else []
    arrived: list[tuple[float, CodecCost, Bytes]] = []
    for number, message in enumerate(messages):
        codec = codecs[message.codec]
        size = sum(stream.sizes[start : message.end])
        computed = clock
        for seconds in stream.compute[start : message.end]:
            computed += seconds
        encoded = computed + (codec.encode[0] + codec.encode[1] * size)
        begun = max(queue, encoded)
        queue = begun + (codec.wire[0] + codec.wire[1] * size)
        found += [
            (clock, computed, "processor", "backward", -1),
            (computed, encoded, "processor", "encode", number),
            (begun, queue, "queue", codec.name, number),
        ]
        arrived.append((queue, codec, size))
        clock, start = encoded, message.end
    for number, (arrival, codec, size) in enumerate(arrived):
        begun = max(clock, arrival)
        clock = begun + (codec.decode[0] + codec.decode[1] * size)
        found.append((begun, clock, "processor", "decode", number))
    return found


def seconds_of(problem: ExchangeProblem, messages: Sequence[Message]) -> float:
    """Return the seconds of the step."""
    return spans(problem, messages)[-1][1]


def sent_of(problem: ExchangeProblem, messages: Sequence[Message]) -> Bytes:
    """Return the bytes that one rank sends in the step."""
    sent = {codec.name: codec.sent for codec in problem.codecs}
    starts = [0, *(message.end for message in messages)]
    return sum(sum(sent[one.codec][start : one.end]) for start, one in zip(starts, messages, strict=False))


def forecast(problem: ExchangeProblem, messages: Sequence[Message]) -> WorkTrace:
    """Return the forecast as a trace, in nanoseconds.

    Args:
        problem: that is planned.
        messages: a division of its gradients.
    """
    events = [
        WorkEvent(
            round(start * 1e9), round(end * 1e9), "" if number < 0 else f"message {number}", where, what
        )
        for start, end, where, what, number in spans(problem, messages)
    ]
    return WorkTrace("forecast", "ns", tuple(sorted(events, key=lambda one: (one.start, one.end))))
