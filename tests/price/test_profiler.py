"""torch's profiler as it is used here: allocations in their order, and no word to the user."""

import warnings

import pytest
import torch
from torch.profiler import profile

from tightrope.price.profiler import changes_of, cpu_profile, start_profile
from tightrope.record import record_eager


def test_allocations_and_releases_are_listed_in_their_order() -> None:
    watcher = cpu_profile()
    start_profile(watcher)
    first = torch.ones(1000)
    second = torch.ones(10)
    del first, second
    watcher.stop()
    assert changes_of(watcher) == [4032, 64, -4032, -64]


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
