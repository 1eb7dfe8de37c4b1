"""Graphs, plans, traces and executables as JSON files; see `tightrope.core.files`."""

from typing import Final

from tightrope.core.checking import MAX_ID, few, within
from tightrope.core.executable import Executable
from tightrope.core.executable_check import check_executable
from tightrope.core.files import dump, load, read_file
from tightrope.core.graph import Graph
from tightrope.core.graph_check import check_graph
from tightrope.core.plan import check_plan, dump_plan, load_plan
from tightrope.core.trace import Trace
from tightrope.core.trace_check import check_tables

__all__ = [
    "check_executable",
    "check_graph",
    "check_plan",
    "dump_executable",
    "dump_graph",
    "dump_plan",
    "dump_trace",
    "load_executable",
    "load_graph",
    "load_plan",
    "load_trace",
    "read_file",
]

_MAX_BUFFERS: Final = 10_000_000
_MAX_EVENTS: Final = 2 * _MAX_BUFFERS


def dump_graph(graph: Graph) -> bytes:
    """Write a graph as indented JSON that `load_graph` reads back to an equal graph.

    Raises:
        PlanFileError: the graph is not well formed, see `check_graph`.
    """
    return dump(graph, check_graph)


def load_graph(data: bytes) -> Graph:
    """Read a graph.

    Raises:
        PlanFileError: the data is not a well-formed graph of this version.
    """
    return load(data, Graph, check_graph)


def dump_executable(executable: Executable) -> bytes:
    """Write an executable as indented JSON that `load_executable` reads back to an equal executable.

    Raises:
        PlanFileError: it is not well formed, see `check_executable`.
    """
    return dump(executable, check_executable)


def load_executable(data: bytes) -> Executable:
    """Read an executable; nothing in it is run, and whether it is right is for the judge to say.

    Raises:
        PlanFileError: the data is not a well-formed executable of this version.

    Example:
        >>> load_executable(b'{"graph": "", "spaces": [], "instructions": [], "schema": 1}')
        Traceback (most recent call last):
        ...
        tightrope.core.errors.PlanFileError: executable: $.schema = 1: the file is older than this version, \
which reads schema 2; make the executable again.
    """
    return load(data, Executable, check_executable)


def dump_trace(trace: Trace) -> bytes:
    """Write a trace as indented JSON that `load_trace` reads back to an equal trace.

    Raises:
        PlanFileError: the trace is not well formed.
    """
    return dump(trace, _check_trace)


def load_trace(data: bytes) -> Trace:
    """Read a trace.

    Raises:
        PlanFileError: the data is not a well-formed trace of this version.
    """
    return load(data, Trace, _check_trace)


def _check_trace(trace: Trace) -> None:
    check_tables(trace)
    few(trace.buffers, "trace: $.buffers", most=_MAX_BUFFERS)
    within(trace.num_events, "trace: $.num_events", high=_MAX_EVENTS)
    begun = 0
    for position, buffer in enumerate(trace.buffers):
        where = f"trace: $.buffers[{position}]"
        within(buffer.bytes, f"{where}.bytes")
        within(buffer.start, f"{where}.start", low=begun, high=trace.num_events)
        within(buffer.end, f"{where}.end", low=buffer.start + 1, high=trace.num_events)
        within(buffer.offset, f"{where}.offset", low=-1)
        within(buffer.storage, f"{where}.storage", low=-1, high=MAX_ID)
        begun = buffer.start
    for position, event in enumerate(trace.events):
        where = f"trace: $.events[{position}]"
        within(event.start, f"{where}.start")
        within(event.end, f"{where}.end", low=event.start)
        within(event.op, f"{where}.op", low=-1, high=MAX_ID)
