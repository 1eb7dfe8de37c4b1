"""Traces: files, producers, answers, exports."""

import json
import math
import pickle
import random
import zlib
from bisect import bisect_left

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _memory_viz

import tightrope
from tightrope.core import (
    Buffer,
    Event,
    EventPhase,
    Module,
    PlanFileError,
    Summary,
    TightropeError,
    Trace,
    format_time,
)
from tightrope.judge import compare_traces
from tightrope.native.solvers.align import cheapest_path
from tightrope.record import (
    Recording,
    annotate,
    diff,
    dump,
    explain,
    forecast,
    load,
    module_times,
    parse_profile,
    record_eager,
    record_run,
    to_chrome,
    to_snapshot,
    tree_of,
)
from tightrope.record.align import align
from tightrope.record.columns import MAGIC
from tightrope.record.slices import Slice
from tightrope.view import page


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(self.second(self.act(self.first(x))), y)
        return loss


BATCH = (torch.ones(8, 16), torch.zeros(8, dtype=torch.long))


@pytest.fixture(scope="module")
def recorded() -> Recording:
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    step = tightrope.step(net, budget="100%", model=net, optimizer=sgd, verify=None)
    step(*BATCH)
    with record_run(step) as recording:
        step(*BATCH)
    return recording


def test_the_observed_step_is_the_forecast_one_to_the_byte(recorded: Recording) -> None:
    seen, said = recorded.trace, forecast(recorded.graph, recorded.plan, classes=recorded.classes)
    assert compare_traces(said, seen).equal
    assert said.profile() == seen.profile()
    assert [b.offset for b in seen.buffers] == [b.offset for b in said.buffers] == list(recorded.plan.offsets)
    assert [(b.creator, b.readers, b.storage) for b in seen.buffers] == [
        (b.creator, b.readers, b.storage) for b in said.buffers
    ]
    assert said.peak == recorded.plan.forecast.peak
    assert said.ns == recorded.plan.forecast.ns


def test_the_allocators_own_count_is_on_the_curve(recorded: Recording) -> None:
    trace = recorded.trace
    (counter,) = trace.counters
    profile = [0, *trace.profile()]
    assert len(counter.values) == len(trace.events)
    assert list(counter.values) == [profile[bisect_left(trace.ticks, when)] for when in counter.times]


def test_children_add_up_to_their_parents(recorded: Recording) -> None:
    trace = recorded.trace
    whole = module_times(trace)
    assert whole[0] == sum(trace.self_times()) == explain(trace).operator_ns
    own = [0] * len(whole)
    for event in trace.events:
        own[event.module] += event.duration
    for position in range(len(whole)):
        below = sum(whole[k] for k, m in enumerate(trace.modules) if m.parent == position)
        assert whole[position] == own[position] + below


def test_modules_and_stages_of_a_planned_step_are_named(recorded: Recording) -> None:
    trace = recorded.trace
    found = {(trace.modules[e.module].path.rpartition(".")[2], e.phase.value) for e in trace.events}
    assert {("first", "forward"), ("act", "forward"), ("second", "backward"), ("act", "backward")} <= found
    assert {"loss", "optimizer"} <= {phase for _, phase in found}


def test_a_run_before_the_first_step_cannot_be_recorded() -> None:
    model = tightrope.compile(torch.nn.Linear(4, 4), budget="64MiB")
    with pytest.raises(TightropeError, match="no training step has run yet"), record_run(model):
        pass


def test_a_step_that_does_not_end_gives_no_trace() -> None:
    model = tightrope.compile(torch.nn.Linear(4, 4), budget="64MiB")
    model(torch.ones(2, 4)).sum().backward()
    with record_run(model) as recording:
        loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(TightropeError, match="no whole training step"):
        _ = recording.trace
    loss.backward()


def test_eager_runs_have_modules_forward_and_backward() -> None:
    net = Net()
    with record_eager(net) as recording:
        net(*BATCH).backward()
    trace = recording.trace
    found = {(trace.modules[e.module].path, e.phase.value, e.name.rpartition("::")[2]) for e in trace.events}
    assert ("first", "forward", "linear") in found
    assert ("act", "backward", "gelu_backward") in found
    assert ("second", "backward", "AccumulateGrad") in found
    assert trace.buffers
    assert load(dump(trace)) == trace
    assert not any(module._forward_hooks for module in net.modules())


def test_hooks_are_gone_after_an_error() -> None:
    net = Net()
    with pytest.raises(RuntimeError), record_eager(net) as recording:
        net(torch.ones(8, 3), BATCH[1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert recording.trace.source == "observed"


def test_a_profile_without_annotations_finds_its_modules() -> None:
    ops = ["linear", "gelu", "linear", "cross_entropy_loss"]
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{op}", "ts": k, "dur": 1} for k, op in enumerate(ops)
    ]
    names = ["CrossEntropyLossBackward0", "LinearBackward0", "GeluBackward0", "LinearBackward0"]
    rows += [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"autograd::engine::evaluate_function: {n}",
            "ts": 9 + k,
            "dur": 1,
        }
        for k, n in enumerate(names)
    ]
    trace = annotate(parse_profile(json.dumps({"traceEvents": rows}).encode()), tree_of(Net()))
    paths = [trace.modules[event.module].path for event in trace.events]
    assert paths == ["first", "act", "second", "loss", "loss", "second", "act", "first"]
    assert [event.phase for event in trace.events[2:5]] == [
        EventPhase.FORWARD,
        EventPhase.LOSS,
        EventPhase.BACKWARD,
    ]


def test_an_activation_that_runs_twice_and_children_out_of_order() -> None:
    block = [("conv1", "Conv2d"), ("conv2", "Conv2d"), ("relu", "ReLU"), ("norm", "LayerNorm")]
    tree = [Module("")]
    for number in range(3):
        tree.append(Module(f"{number}", "Block", 0))
        parent = len(tree) - 1
        tree += [Module(f"{number}.{name}", kind, parent) for name, kind in block]
    names = ["layer_norm", "conv2d", "relu", "conv2d", "relu"] * 3
    wanted = [f"{k}.{n}" for k in range(3) for n in ("norm", "conv1", "relu", "conv2", "relu")]
    assert [tree[k].path for k in align([f"aten::{name}" for name in names], tree)] == wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 12))
def test_native_and_python_alignments_cost_the_same(seed: int, slots: int, items: int) -> None:
    import numpy as np

    rng = random.Random(seed)
    cost = np.array([[rng.randrange(20) for _ in range(slots)] for _ in range(4)])
    kinds = [rng.randrange(4) for _ in range(items)]
    skip = [rng.randrange(6) for _ in range(slots)]
    family = [rng.randrange(3) for _ in range(slots)]
    paths = [
        cheapest_path(kinds, cost, skip, family, back=2, far=5, native=native) for native in (True, False)
    ]
    assert paths[0] == paths[1]


NAMES = st.text(max_size=5)
TRACES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(EventPhase), NAMES), max_size=8
)


@settings(max_examples=40, deadline=None)
@given(TRACES)
def test_any_trace_survives_its_file(rows: list[tuple[int, int, EventPhase, str]]) -> None:
    text = [name.encode("utf-8", "ignore").decode() for *_, name in rows]
    events = tuple(
        Event(start, start + length, k, name, k % 2, phase)
        for k, ((start, length, phase, _), name) in enumerate(zip(sorted(rows), text, strict=True))
    )
    trace = Trace(
        "observed", (Buffer(7, 0, 2),), events, 2, ticks=(0, 9), modules=(Module(""), Module("a", "", 0))
    )
    assert load(dump(trace)) == trace


def test_damaged_trace_files_are_refused_with_a_clear_error(recorded: Recording) -> None:
    data = dump(recorded.trace)
    rng, tried, refused = random.Random(0), 0, 0
    for _ in range(300):
        at = rng.randrange(len(data))
        wrong = rng.choice([data[:at], data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], data + b"x"])
        if wrong == data:
            continue
        tried += 1
        try:
            assert load(wrong) == load(data)  # bits that only fill up the deflated stream's last byte
        except PlanFileError:
            refused += 1
    assert tried > 200
    assert refused >= tried - 3


def test_fuzzed_bodies_are_refused_or_well_formed(recorded: Recording) -> None:
    body = zlib.decompress(dump(recorded.trace)[8:])
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        wrong = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        try:
            explain(load(MAGIC + zlib.compress(bytes(wrong), 1)))
        except PlanFileError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modules": (Module("", "", 0),)}, "root"),
        ({"events": (Event(0, 1, 0, module=3),)}, "module"),
        ({"events": (Event(5, 1, 0),)}, "end"),
        ({"ticks": (3, 1), "num_events": 2}, "ticks"),
        ({"buffers": (Buffer(1, 0, 1, creator=4),), "num_events": 1}, "creator"),
    ],
)
def test_tables_that_point_nowhere_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        dump(msgspec.structs.replace(Trace("observed", ()), **change))


NAN: int = math.nan  # type: ignore[assignment]
EVIL: list[tuple[dict[str, object], str]] = [
    ({"events": (Event(0, 1, 0, module=3),)}, r"events\[0\].module"),
    ({"events": (Event(0, 1, 0, line=0),)}, r"events\[0\].line"),
    ({"events": (Event(0, 1, 0, callers=0),)}, r"events\[0\].callers"),
    ({"callers": ((0,),)}, r"callers\[0\]"),
    ({"events": (Event(NAN, 1, 0),)}, r"events\[0\].start"),
    ({"events": (Event(0, NAN, 0),)}, r"events\[0\].end"),
    ({"events": (Event(0, 2**53, 0),)}, r"events\[0\].end = 9007199254740992: .* below 2\^53"),
    ({"events": (Event(0, 1, 0, phase="forward"),)}, r"events\[0\].phase"),  # type: ignore[arg-type]
    ({"events": (Event(0, 1, 0, name=None),)}, r"events\[0\].name"),  # type: ignore[arg-type]
    ({"modules": ()}, "root"),
    ({"num_events": NAN}, "num_events"),
    ({"num_events": 1, "ticks": (2**53,)}, r"ticks\[0\]"),
    ({"num_events": 2, "buffers": (Buffer(1, 0, 5),)}, r"buffers\[0\] is alive in \[0, 5\)"),
    ({"num_events": 2, "buffers": (Buffer(1, NAN, 2),)}, r"buffers\[0\] is alive"),
    ({"num_events": 2, "buffers": (Buffer(2**53, 0, 2),)}, r"buffers\[0\].bytes"),
    ({"num_events": 2, "buffers": (Buffer(1, 0, 2, reason=0),)}, r"buffers\[0\].reason"),
    ({"num_events": 2, "buffers": (Buffer(1, 0, 2, readers=(0,)),)}, r"buffers\[0\].readers"),
    ({"events": None}, "TypeError"),
    ({"summary": Summary(match=math.nan)}, "summary.match"),
]


@pytest.mark.parametrize(("change", "message"), EVIL)
def test_impossible_traces_made_by_hand_are_refused_at_every_door(
    change: dict[str, object], message: str
) -> None:
    trace = msgspec.structs.replace(Trace("observed", ()), **change)
    for door in (explain, module_times, to_chrome, to_snapshot, dump, page):
        with pytest.raises(PlanFileError, match=message):
            door(trace)
    with pytest.raises(PlanFileError, match=message):
        diff(Trace("observed", ()), trace)


def test_times_that_a_browser_cannot_hold_are_refused_when_a_file_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = Trace("observed", (), (Event(0, 2**53, 0),))
    with monkeypatch.context() as unchecked:
        unchecked.setattr("tightrope.record.columns.check_trace", lambda _: None)
        data = dump(trace)
    with pytest.raises(PlanFileError, match=r"events\[0\].end = 9007199254740992: must be .* below 2\^53"):
        load(data)


def test_modules_that_are_no_tree_are_refused_before_a_profile_is_told_by_them() -> None:
    with pytest.raises(PlanFileError, match=r"modules\[1\].parent"):
        annotate([Slice("aten::linear", 0, 5)], (Module(""), Module("fc", "Linear", 7)))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'{"traceEvents": 3}', b"{" * 100_000,
     b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": NaN}]}',
     b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": -5}]}',
     b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1e300, "dur": 1e300}]}'],
)  # fmt: skip
def test_profiles_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(PlanFileError, match="profile"):
        parse_profile(data)


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_long_names_and_many_modules_do_no_harm(size: int) -> None:
    row = {"ph": "X", "cat": "cpu_op", "name": "<script>" + "x" * 10 * size, "ts": 0, "dur": 1}
    trace = annotate(parse_profile(json.dumps({"traceEvents": [row]}).encode()))
    assert len(trace.events[0].name) <= 1000
    assert load(dump(trace)) == trace
    many = Trace("observed", (), modules=(Module(""), *(Module(str(k), "", 0) for k in range(size))))
    assert load(dump(many, level=1)) == many


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


def test_answers_and_differences(recorded: Recording) -> None:
    trace = recorded.trace
    answers = explain(trace, save=64)
    assert sum(share.ns for share in answers.stages) == answers.operator_ns
    assert answers.num_alive == sum(b.start <= trace.peak_tick < b.end for b in trace.buffers)
    assert "dominates" in str(answers)
    assert json.loads(msgspec.json.encode(answers.to_dict()))["peak"] == trace.peak
    assert answers.forecast_ns == recorded.plan.forecast.ns
    assert answers.ratio == answers.operator_ns / answers.forecast_ns
    seen = f"observed {format_time(answers.operator_ns)}, {answers.ratio:.2f} times the forecast"
    assert seen in str(answers)
    said = forecast(recorded.graph, recorded.plan)
    assert explain(said).forecast_ns is None
    changed = diff(said, trace)
    assert changed.peak[0] == changed.peak[1]
    assert not changed.decisions
