"""torch's profiler as it is used here: allocations in their order, and no word to the user."""

import torch

from tightrope.price.profiler import changes_of, cpu_profile, start_profile


def test_allocations_and_releases_are_listed_in_their_order() -> None:
    watcher = cpu_profile()
    start_profile(watcher)
    first = torch.ones(1000)
    second = torch.ones(10)
    del first, second
    watcher.stop()
    assert changes_of(watcher) == [4032, 64, -4032, -64]
