"""H2: eager recordings against a hook on every autograd node, and what recording costs."""

import gc
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

from benchmarks._measure import Ratio, bootstrap
from benchmarks.recorder.nets import Net, net
from benchmarks.recorder.row import Row
from benchmarks.recorder.witness import Nodes, State
from benchmarks.zoo import Scale
from tightrope.record import record_eager, tree_of

_NUM_ROUNDS = 16


def eager(name: str, scale: Scale) -> Row:
    """Score one net."""
    one = net(name, scale)
    for _ in range(2):
        one.step()
    share = _share(one)
    hooks, full = _costs(one)
    return Row(
        {"net": name, "time right %": share, "recorded/profiled": str(hooks), "recorded/plain": str(full)},
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

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            state.open_now.append(path)
            marks.append((time.time_ns(), at[path]))

        return hook

    def leave(*_: object) -> None:
        state.open_now.pop()
        marks.append((time.time_ns(), at[state.open_now[-1]]))

    handles: list[Any] = []
    for path, module in net.model.named_modules():
        handles += [module.register_forward_pre_hook(enter(path)), module.register_forward_hook(leave)]
    net.optimizer.zero_grad()
    with record_eager(net.model, memory=False) as recording:
        with Nodes(state):
            loss = net.model(*net.inputs)
        for node, path in state.nodes.items():
            if "AccumulateGrad" not in node.name():  # a shared parameter has several modules
                _watch(node, at[path], marks)
        marks.append((time.time_ns(), -1))
        loss.backward()
    for handle in handles:
        handle.remove()
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


def _costs(net: Net) -> tuple[Ratio, Ratio]:
    """CPU time with hooks over the plain profiler, and of the full recording over the plain step.

    Rounds run forwards and backwards in turn, so that what warms up or drifts meets every side.
    """
    ways: tuple[Callable[[], AbstractContextManager[object]], ...] = (
        nullcontext,
        lambda: profile(activities=[ProfilerActivity.CPU]),
        lambda: record_eager(net.model, memory=False),
        lambda: record_eager(net.model),
    )
    rows = []
    for number in range(_NUM_ROUNDS + 1):
        order = range(len(ways)) if number % 2 else reversed(range(len(ways)))
        rows.append(dict(sorted((way, _seconds(net, ways[way])) for way in order)))
    plain, profiled, hooked, full = (np.array([row[way] for row in rows[1:]]) for way in range(len(ways)))
    return bootstrap(list(hooked / profiled)), bootstrap(list(full / plain))


def _seconds(net: Net, way: Callable[[], AbstractContextManager[object]]) -> float:
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
