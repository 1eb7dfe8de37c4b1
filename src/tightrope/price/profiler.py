"""One cycle of torch's profiler: what ran, and what was allocated."""

import warnings
from typing import Any

from torch.profiler import ProfilerActivity, profile

from tightrope.core import Bytes, round_up


def cpu_profile(*, memory: bool = True) -> profile:
    """Make a profiler of the CPU's ops, and of their allocations; `start_profile` begins its only cycle."""
    return profile(activities=[ProfilerActivity.CPU], profile_memory=memory)


def start_profile(watcher: profile) -> None:
    """Start a profiler without the warning of torch 2.11 and 2.12 that events of earlier cycles go."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        watcher.start()


def events_of(watcher: profile) -> list[Any]:
    """List what a profiler saw, once it is stopped; torch's stubs lack some of their methods."""
    results = watcher.profiler.kineto_results if watcher.profiler else None
    return results.events() if results else []


def changes_of(watcher: profile) -> list[Bytes]:
    """List what was allocated, and freed as negative numbers, in the order of time.

    >>> import torch
    >>> watcher = cpu_profile()
    >>> start_profile(watcher)
    >>> kept = torch.ones(2)
    >>> watcher.stop()
    >>> changes_of(watcher)
    [64]
    """
    changes = [event for event in events_of(watcher) if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]
    return [round_up(size) if size > 0 else -round_up(-size) for size in sizes]
