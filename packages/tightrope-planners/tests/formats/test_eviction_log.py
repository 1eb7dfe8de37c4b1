"""The eviction log's own format: what is written is read back, and nothing else is accepted."""

import json
from typing import Any

import pytest

from tightrope.core import Graph, Op, PlanFileError, Storage
from tightrope_planners.evict.log import EvictionLog, LoggedOp, Released, StepEnd
from tightrope_planners.formats.eviction import log_of_graph, read_eviction_log, write_eviction_log

LOG = EvictionLog(
    "two ops",
    (64, 128, 256),
    (True, False, False),
    (
        LoggedOp("relu", 5, (0,), (1,), (), 32),
        LoggedOp("add_", 6, (1, 0), (2,), (1,), 0, False),
        Released(1),
        StepEnd(),
    ),
)


def test_what_is_written_is_read_back() -> None:
    assert read_eviction_log(write_eviction_log(LOG)) == LOG


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "other", r"\$ = .*must be fields"),
        (("version",), 2, r"\$\.version = 2: must be 1"),
        (("version",), True, r"\$\.version"),
        (("name",), 3, r"\$\.name = 3"),
        (("storages", 0), [64], r"\$\.storages\[0\]"),
        (("storages", 0), [-1, True], r"\$\.storages\[0\]"),
        (("storages", 0), [True, True], r"\$\.storages\[0\]"),
        (("events", 0), ["op", "relu"], r"\$\.events\[0\]"),
        (("events", 0, 2), -1, r"\$\.events\[0\]"),
        (("events", 0, 3), [1], r"\$\.events\[0\] = 1: must be a storage that is made before"),
        (("events", 0, 3), [9], r"different numbers below 3"),
        (("events", 0, 4), [1, 1], r"different numbers below 3"),
        (("events", 0, 4), [0], r"a storage that nothing made before"),
        (("events", 1, 5), [2], r"must be"),
        (("events", 2), ["release", 2.0], r"different numbers"),
        (("events", 3), ["release", 1], r"not yet released"),
        (("events", 3), ["stop"], r'must be \["op"'),
    ],
)
def test_a_wrong_log_is_refused_where_it_is_wrong(path: tuple[Any, ...], value: Any, message: str) -> None:
    tree = json.loads(write_eviction_log(LOG))
    at = tree
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    with pytest.raises(PlanFileError, match=message):
        read_eviction_log(json.dumps(tree).encode())


def test_a_graph_becomes_steps() -> None:
    ops = (Op(0, "relu", "relu", (0,), (1,), ns=5),)
    graph = Graph(ops, (Storage(0, 64, external=True), Storage(1, 64, resident_at_end=True)))
    log = log_of_graph(graph, num_steps=2)
    assert log.sizes == (64, 64, 64)
    assert [type(event) for event in log.events] == [LoggedOp, Released, StepEnd] * 2
    assert read_eviction_log(write_eviction_log(log)) == log
