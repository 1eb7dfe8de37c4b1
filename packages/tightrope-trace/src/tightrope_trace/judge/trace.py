"""Compare the trace that a plan forecasts with the trace that a run observed."""

from dataclasses import dataclass

from tightrope.core import Buffer, Bytes, JudgeError, Trace, round_up


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """How an observed trace differs from its forecast.

    Attributes:
        equal: same sizes and lifetimes, in the same order.
        num_buffers: allocations forecast.
        peak_difference: observed peak minus forecast peak, bytes.
        first_difference: one sentence, empty when equal.
    """

    equal: bool
    num_buffers: int
    peak_difference: Bytes
    first_difference: str


def compare_traces(forecast: Trace, observed: Trace) -> TraceComparison:
    """Compare sizes (rounded up to the alignment) and lifetimes, allocation by allocation."""
    first = _first_difference(forecast, observed)
    return TraceComparison(not first, len(forecast.buffers), observed.peak - forecast.peak, first)


def check_trace(forecast: Trace, observed: Trace) -> TraceComparison:
    """Refuse an observed trace that is not the forecast one.

    Returns:
        The comparison, which is ``equal``.

    Raises:
        JudgeError: quotes the first difference and the difference of the peaks.
    """
    result = compare_traces(forecast, observed)
    if not result.equal:
        peak = f"the observed peak differs by {result.peak_difference:+d} bytes"
        raise JudgeError(f"trace: {result.first_difference}; {peak}.")
    return result


def _first_difference(forecast: Trace, observed: Trace) -> str:
    for number, (said, seen) in enumerate(zip(forecast.buffers, observed.buffers, strict=False)):
        if _key(said) != _key(seen):
            return f"allocation {number} was forecast as {_show(said)} and observed as {_show(seen)}"
    if len(forecast.buffers) != len(observed.buffers):
        return f"{len(forecast.buffers)} allocations were forecast and {len(observed.buffers)} observed"
    if forecast.num_events != observed.num_events:
        return f"{forecast.num_events} ticks were forecast and {observed.num_events} observed"
    return ""


def _key(buffer: Buffer) -> tuple[Bytes, int, int]:
    return round_up(buffer.bytes), buffer.start, buffer.end


def _show(buffer: Buffer) -> str:
    storage = f" (storage {buffer.storage})" if buffer.storage >= 0 else ""
    return f"{buffer.bytes} bytes in [{buffer.start}, {buffer.end}){storage}"
