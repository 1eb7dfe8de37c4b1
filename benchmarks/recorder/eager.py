"""H2: eager recordings against a hook on every autograd node, and what recording costs."""

import gc
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

from benchmarks._measure import Ratio, bootstrap
from benchmarks.recorder.nets import Net, net
from benchmarks.recorder.row import Row
from benchmarks.recorder.witness import Nodes, State, hooked
from benchmarks.zoo import Scale
from tightrope_trace import record_eager, tree_of

Way = Callable[[], AbstractContextManager[object]]
_MIN_ROUNDS, _MAX_ROUNDS, _COST_SECONDS = 5, 20, 30.0


def eager(name: str, scale: Scale) -> Row:
    """Score one net."""
    one = net(name, scale)
    for _ in range(2):
        one.step()
    share = _share(one)
    hooks, noise, full = _costs(one)
    return Row(
        {
            "net": name,
            "time right %": share,
            "hooked/profiled": str(hooks),
            "profiled/profiled": str(noise),
            "recorded/plain": str(full),
        },
        share >= 97 and hooks.median <= 1.02 and full.median <= 1.5,
    )


def _share(net: Net) -> float:
    """Percent of backward and forward self time on the right module.

    The truth: forward ops by the module that is open, noted in a stack of its own; nodes by the module
    that was open when the function that made them returned, and a hook before and after every node.
    """
    at = {module.path: number for number, module in enumerate(tree_of(net.model))}
    marks: list[tuple[int, int]] = []
    state = State()

    def enter(path: str) -> None:
        state.open_now.append(path)
        marks.append((time.time_ns(), at[path]))

    def leave() -> None:
        state.open_now.pop()
        marks.append((time.time_ns(), at[state.open_now[-1]]))

    net.optimizer.zero_grad()
    with hooked(net.model, enter, leave), record_eager(net.model, memory=False) as recording:
        with Nodes(state):
            loss = net.model(*net.inputs)
        for node, path in state.nodes.items():
            if "AccumulateGrad" not in node.name():  # a shared parameter has several modules
                _watch(node, at[path], marks)
        marks.append((time.time_ns(), -1))
        loss.backward()
    trace = recording.trace
    results: Any = recording._profile.profiler and recording._profile.profiler.kineto_results
    base = min(row.start_ns() for row in results.events() if not row.name().startswith("["))
    times = [when - base for when, _ in marks]
    right = total = 0
    for event, ns in zip(trace.events, trace.self_times(), strict=True):
        where = bisect_right(times, event.start) - 1
        if where >= 0 and marks[where][1] >= 0:  # between nodes the engine works for nobody
            total += ns
            right += ns * (marks[where][1] == event.module)
    return 100 * right / max(total, 1)


def _watch(node: Any, owner: int, marks: list[tuple[int, int]]) -> None:
    node.register_prehook(lambda *_: marks.append((time.time_ns(), owner)))
    node.register_hook(lambda *_: marks.append((time.time_ns(), -1)))


def _costs(net: Net) -> tuple[Ratio, Ratio, Ratio]:
    """Ratios of CPU time: hooks to profiler, profiler to itself, full recording to plain step.

    A round is a palindrome, so that what drifts meets every side alike; the profiler over itself says how
    much of a ratio is noise.
    """
    profiled = partial(profile, activities=[ProfilerActivity.CPU])
    hooked, full = partial(record_eager, net.model, memory=False), partial(record_eager, net.model)
    half: list[Way] = [nullcontext, full, profiled, hooked, profiled]
    _round(net, half)
    rounds: list[list[float]] = []
    until = time.thread_time() + _COST_SECONDS
    while len(rounds) < _MIN_ROUNDS or (len(rounds) < _MAX_ROUNDS and time.thread_time() < until):
        rounds.append(_round(net, half))
    plain, recorded, before, hooks, after = np.array(rounds).T
    return (
        bootstrap(list(2 * hooks / (before + after))),
        bootstrap(list(after / before)),
        bootstrap(list(recorded / plain)),
    )


def _round(net: Net, half: Sequence[Way]) -> list[float]:
    """Seconds of each way, there and back."""
    there = [_seconds(net, way) for way in half]
    back = [_seconds(net, way) for way in reversed(half)]
    return [a + b for a, b in zip(there, reversed(back), strict=True)]


def _seconds(net: Net, way: Way) -> float:
    """Thread-CPU seconds of one step inside a context, without what opening and closing it takes."""
    gc.collect()
    gc.disable()
    try:
        with way():
            start = time.thread_time()
            net.step()
            return time.thread_time() - start
    finally:
        gc.enable()
