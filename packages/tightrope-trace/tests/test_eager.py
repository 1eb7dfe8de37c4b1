"""A step that is run as it is, and recorded."""

import warnings

import pytest
import torch
from test_planned import BATCH, Net
from torch.profiler import profile

from tightrope.price.profiler import cpu_profile
from tightrope_trace import dump, load, record_eager


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


def test_a_profiler_that_warns_of_earlier_cycles_warns_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    before = profile.prepare_trace

    def warning(self: profile) -> None:
        warnings.warn("Warning: Profiler clears events at the end of each cycle.Only", stacklevel=1)
        before(self)

    monkeypatch.setattr(profile, "prepare_trace", warning)
    with pytest.raises(UserWarning, match="clears events"):
        cpu_profile().start()
    filters = list(warnings.filters)
    with record_eager(torch.nn.Linear(2, 2)) as recording:
        recording.model(torch.ones(1, 2))
    assert recording.trace.events
    assert warnings.filters == filters
