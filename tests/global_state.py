"""What a training script can see change in its process: `python -m tests.global_state` prints it as JSON.

The control does with torch alone what the library stands on: `torch.compile` by a backend that runs eager's
kernels, and an update. Threads that kernels start are not compared: every kernel has one thread here.
"""

import atexit
import copyreg
import faulthandler
import gc
import json
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

GENERATORS = ("python", "numpy", "torch")


def name_of(value: Any) -> str:
    """Name a value without its address."""
    kind = value if isinstance(value, type) else getattr(value, "__func__", value)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', repr(type(value)))}"


def generators() -> dict[str, list[str]]:
    numbers = np.random.get_state(legacy=False)
    return {
        "python": [repr(random.getstate())],
        "numpy": [repr({**numbers, "state": {**numbers["state"], "key": numbers["state"]["key"].tolist()}})],
        "torch": [repr(torch.get_rng_state().tolist())],
    }


def present() -> dict[str, list[str]]:
    """Describe the process: what, and its values, each as text."""
    umask = os.umask(0)
    os.umask(umask)
    return generators() | {
        "warnings": [repr(one) for one in warnings.filters] + [name_of(warnings.showwarning)],
        "imports": [name_of(one) for one in (*sys.path_hooks, *sys.meta_path, __import__)],
        "search path": list(sys.path),
        "signals": [f"{one} {name_of(signal.getsignal(one))}" for one in signal.valid_signals()],
        "threads": [one.name for one in threading.enumerate()],
        "tasks": [str(number) for number, _ in enumerate(os.listdir("/proc/self/task"))],
        "logging": [name_of(one) for one in logging.root.handlers] + [str(logging.root.level)],
        "hooks": [name_of(one) for one in (sys.excepthook, sys.unraisablehook, threading.excepthook)],
        "tracing": [repr(sys.gettrace()), repr(sys.getprofile()), repr(threading.gettrace())],
        "at exit": [str(number) for number in range(atexit._ncallbacks())],
        "locale": [locale.setlocale(locale.LC_ALL)],
        "environment": [f"{key}={value}" for key, value in os.environ.items()],
        "process": [os.getcwd(), oct(umask), str(faulthandler.is_enabled()), str(sys.getrecursionlimit())],
        "streams": [str(id(one)) for one in (sys.stdin, sys.stdout, sys.stderr)],
        "collector": [repr(gc.get_threshold()), repr(gc.isenabled()), *map(name_of, gc.callbacks)],
        "pickling": [name_of(one) for one in copyreg.dispatch_table],
        "torch's settings": settings(),
    }


def settings() -> list[str]:
    return [
        repr(torch.get_default_dtype()),
        repr(torch.get_default_device()),
        repr((torch.get_num_threads(), torch.get_num_interop_threads())),
        repr((torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())),
        repr((torch.is_grad_enabled(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu"))),
        repr(
            (
                torch.backends.mkldnn.enabled,
                torch.backends.cudnn.benchmark,
                torch._C._len_torch_dispatch_stack(),
            )
        ),
    ]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))


def drawn_by(call: Callable[[], Any]) -> Callable[[], Any]:
    """Compare the draws of torch's generator with those of eager, whose dropout draws once."""

    def compared() -> Any:
        before = torch.get_rng_state()
        found = call()
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        nn.functional.dropout(torch.ones(4, 16), 0.1)
        assert torch.equal(after, torch.get_rng_state())
        torch.set_rng_state(before)
        return found

    return compared


def stages_of_torch() -> Iterator[str]:
    x, model = torch.ones(4, 8), net()
    yield "made a net"
    compiled = torch.compile(model, backend="aot_eager")
    drawn_by(lambda: compiled(x).sum().backward())()
    torch.optim.AdamW(model.parameters()).step()
    yield "compiled"


def stages() -> Iterator[str]:
    x, model, other = torch.ones(4, 8), net(), nn.Linear(8, 8)
    yield "made a net"
    import tightrope

    yield "import"
    with tightrope.evict(budget="64MiB"):
        other(x).sum().backward()
    yield "evict"
    compiled = tightrope.compile(model, budget="64MiB", progress=True)
    yield "compile"
    loss = drawn_by(lambda: compiled(x).sum())()
    yield "first forward"
    loss.backward()
    yield "first backward"
    str(tightrope.report(compiled))
    yield "report"
    other.zero_grad()
    optimizer = torch.optim.AdamW(other.parameters())
    step = tightrope.step(lambda x: other(x).sum(), budget="64MiB", model=other, optimizer=optimizer)
    step(x)
    step(x)
    yield "first steps"
    loop = tightrope.replay(budget="64MiB")
    for _ in range(4):
        with loop:
            other(x).sum().backward()
    yield "replay"
    tightrope.plan(tightrope.capture(other, x), budget="100%")
    yield "capture and plan"
    import tightrope.cli

    yield "command line"


def moved(which: Callable[[], Iterator[str]]) -> dict[str, dict[str, list[str]]]:
    """Run the stages; list per stage, of what differs from before it, the values that came or went."""
    found: dict[str, dict[str, list[str]]] = {}
    running = which()
    next(running)
    before = present()
    for stage in running:
        now = present()
        sides = {key: (set(now[key]), set(before[key])) for key in now}
        found[stage] = {key: sorted(one ^ other) for key, (one, other) in sides.items() if one != other}
        before = now
    return found


if __name__ == "__main__":
    print(json.dumps(moved(stages_of_torch if sys.argv[1:] == ["control"] else stages)))
