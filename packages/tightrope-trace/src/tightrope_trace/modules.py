"""Times of modules, each with those in it."""

from tightrope.core import Nanoseconds, Trace
from tightrope.core.trace_check import check_trace


def module_times(trace: Trace) -> list[Nanoseconds]:
    """Time of every module, the modules in it included; each is its own ops plus its children.

    Raises:
        PlanFileError: the trace is not well formed: says what is wrong.
    """
    check_trace(trace)
    found = [0] * len(trace.modules)
    for event, ns in zip(trace.events, trace.self_times(), strict=True):
        found[event.module] += ns
    for position in range(len(found) - 1, 0, -1):
        found[trace.modules[position].parent] += found[position]
    return found
