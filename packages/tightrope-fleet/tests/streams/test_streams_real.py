"""Captured models that run: the plan's order, measured times, judged."""

import pytest
import torch

from tightrope.core import TightropeError
from tightrope_fleet.judge.streams import check_stream_run
from tightrope_fleet.streams import StreamOptions, expand, plan_streams
from tightrope_fleet.streams.real import prepare_model, profile_machine, run_real
from tightrope_fleet.values.streams import StreamModel, StreamScenario


def test_planned_frames_run_and_their_cpu_time_is_the_clock() -> None:
    others = torch.ones(2**21)  # what else the process holds takes nothing of the room
    real = prepare_model(torch.nn.Linear(64, 64), (torch.ones(8, 64),), room=2**20)
    assert others.numel() == 2**21
    machine = profile_machine({"a": real}, runs=5)
    scenario = StreamScenario("one", (StreamModel("a", 100),))
    case = expand(scenario, machine, horizon=100_000_000)
    plan = plan_streams(case, options=StreamOptions(moves=50))
    run = run_real(case, plan, {"a": real})
    check_stream_run(scenario, machine, run, timed=True)
    assert sum(frame.state == "done" for frame in run.frames) > 0
    assert real.observed_peak() <= real.limit
    with pytest.raises(TightropeError, match="every model"):
        run_real(case, plan, {})
