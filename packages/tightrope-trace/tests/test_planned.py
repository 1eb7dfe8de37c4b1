"""Runs of plans: recorded to the byte, told by modules, kept with the times of every step."""

import json
from bisect import bisect_left

import msgspec
import pytest
import torch

import tightrope
from tightrope.core import (
    IntegrityError,
    TightropeError,
    format_time,
)
from tightrope.core.provenance import Provenance
from tightrope.core.repeats import times_by
from tightrope.record import forecast
from tightrope_trace import dump, explain, load, module_times
from tightrope_trace.judge.trace import compare_traces
from tightrope_trace.planned import Recording, record_run


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


def test_every_step_of_a_recording_is_kept_and_the_last_is_the_trace() -> None:
    model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
    batch = torch.ones(2, 8)
    model(batch).sum().backward()
    with record_run(model) as recording:
        for _ in range(4):
            model(batch).sum().backward()
        times = [run.end - run.start for run in recording._runs]
    trace = recording.trace
    assert [len(own) for own in trace.repeats] == [len(trace.events)] * 3
    assert trace.self_times() == times
    assert load(dump(trace)) == trace
    assert times_by(trace, lambda event: "all")["all"][-1] == sum(times)


def test_answers(recorded: Recording) -> None:
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


class Entry:
    """An entry point of a check."""

    dist = None

    def __init__(self, found: object) -> None:
        self.found = found

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Verdict:
    """What a check says of a plan: its code is here, or it is not."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def demand(self) -> None:
        if self.wrong:
            raise IntegrityError(self.wrong)


def test_a_plan_that_names_its_code_runs_where_a_check_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = torch.nn.Linear(2, 2), torch.ones(1, 2)
    tightrope.compile(model, budget="64MiB", progress=False)
    model(batch).sum().backward()
    with record_run(model) as first:
        model(batch).sum().backward()
    plan = msgspec.structs.replace(first.plan, provenance=Provenance((), (), "", "cpython-311"))

    def checked_by(*found: object) -> None:
        entries = {"provenance": tuple(Entry(one) for one in found)} if found else {}
        monkeypatch.setattr("tightrope_trace.planned.installed", lambda _: entries)

    def run() -> None:
        with record_run(model, plan=plan, graph=first.graph):
            model(batch).sum().backward()

    asked = []
    checked_by(lambda plan, captured: asked.append(plan) or Verdict(""))
    run()
    assert asked == [plan]
    checked_by(lambda plan, captured: Verdict("own_net.py is not the file of the plan"))
    with pytest.raises(IntegrityError, match=r"own_net\.py"):
        run()
    checked_by()
    with pytest.raises(TightropeError, match=r"pip install 'tightrope\[verify\]'"):
        run()
    checked_by(ImportError("no such module"))
    with pytest.raises(TightropeError, match=r"does not load \(no such module\)"):
        run()
