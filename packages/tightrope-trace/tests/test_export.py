"""Traces for other viewers: Perfetto, and PyTorch's of memory."""

import json
import pickle

import msgspec
import pytest
from test_planned import recorded
from torch.cuda import _memory_viz

from tests.record.test_callers import Twice, line_of, squared, trace
from tests.record.test_record import EVIL
from tightrope.core import PlanFileError, Trace
from tightrope_trace import Recording, to_chrome, to_snapshot

__all__ = ["recorded", "trace"]  # fixtures


def test_perfetto_gets_every_op_and_the_peak(recorded: Recording) -> None:
    trace = recorded.trace
    rows = json.loads(to_chrome(trace))["traceEvents"]
    assert sum(row["ph"] == "X" for row in rows) == len(trace.events)
    live = [row["args"]["value"] for row in rows if row["ph"] == "C" and row["name"] == "live bytes"]
    assert max(live) == trace.peak


def test_torchs_viewer_reads_the_snapshot(recorded: Recording) -> None:
    snapshot = pickle.loads(to_snapshot(recorded.trace))
    rows = snapshot["device_traces"][0]
    assert sum(row["action"] == "alloc" for row in rows) == len(recorded.trace.buffers)
    assert _memory_viz.trace(snapshot)
    assert "<html" in _memory_viz.trace_plot(snapshot).lower() or _memory_viz.trace_plot(snapshot)


def test_torchs_viewer_gets_every_frame(trace: Trace) -> None:
    rows = pickle.loads(to_snapshot(trace))["device_traces"][0]
    frames = {tuple((frame["filename"], frame["line"]) for frame in row["frames"]) for row in rows}
    file, line = line_of(squared, "x.square()").split(":")
    outer = line_of(Twice, "first = ").split(":")
    assert ((file, int(line)), (outer[0], int(outer[1]))) in frames


@pytest.mark.parametrize(("change", "message"), EVIL)
def test_impossible_traces_are_not_exported(change: dict[str, object], message: str) -> None:
    wrong = msgspec.structs.replace(Trace("observed", ()), **change)
    for door in (to_chrome, to_snapshot):
        with pytest.raises(PlanFileError, match=message):
            door(wrong)
