"""Record eager training steps as an eviction log: every ATen op, its storages, its time, and releases."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.evict.nets import trained
from benchmarks.zoo import Scale
from tightrope.capture._torch import storage_key, watch_storage
from tightrope_planners.evict.log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd
from tightrope_planners.formats.eviction import read_eviction_log, write_eviction_log

_READ_ONLY = {"aten.empty.memory_format", "aten.detach.default"}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Write down what runs inside it; storages that were there before are outside the arena.

    Attributes:
        events: so far.
        sizes: bytes of storages.
        outside: whether they were there before.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[LogEvent] = []
        self.sizes: list[int] = []
        self.outside: list[bool] = []
        self._alive: dict[int, tuple[int, Callable[[], bool]]] = {}
        self._times: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        self._keys: dict[int, tuple[Any, ...]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.sweep()
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        reads = list(dict.fromkeys(self._id(tensor, outside=True) for tensor in given))
        begin = time.perf_counter_ns()
        result = func(*args, **kwargs)
        ns = time.perf_counter_ns() - begin
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        known = set(reads)
        results = list(dict.fromkeys(self._id(tensor, outside=False) for tensor in made))
        creates = [one for one in results if one not in known]
        mutates = list(dict.fromkeys(self._mutated(func, args, kwargs)))
        if creates or mutates or given:
            key = (str(func), tuple(tuple(t.shape) for t in given), tuple(self.sizes[one] for one in creates))
            self._times[key].append(ns)
            self._keys[len(self.events)] = key
            op = LoggedOp(str(func), ns, tuple(reads), tuple(creates), tuple(mutates))
            self.events.append(op)
        return result

    def _mutated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = kwargs.get(argument.name) if argument.kwarg_only or at >= len(args) else args[at]
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes():
                    yield self._id(leaf, outside=True)
        if "batch_norm" in str(func) and "backward" not in str(func) and len(args) > 5 and args[5] is True:
            yield from (self._id(one, outside=True) for one in args[3:5] if isinstance(one, Tensor))

    def _id(self, tensor: Tensor, *, outside: bool) -> int:
        key = storage_key(tensor)
        if key in self._alive and not self._alive[key][1]():
            return self._alive[key][0]
        one = len(self.sizes)
        self.sizes.append(tensor.untyped_storage().nbytes())
        self.outside.append(outside)
        self._alive[key] = (one, watch_storage(tensor))
        return one

    def sweep(self) -> None:
        """Write down the storages that are gone by now."""
        for key, (one, expired) in list(self._alive.items()):
            if expired():
                del self._alive[key]
                self.events.append(Released(one))

    def end_step(self) -> None:
        """Write down that a training step ends."""
        self.sweep()
        self.events.append(StepEnd())

    def log(self, name: str) -> EvictionLog:
        """Finish: equal ops on equal shapes get the median of their times."""
        times = {key: int(median(found)) for key, found in self._times.items()}
        events = list(self.events)
        for at, key in self._keys.items():
            op = events[at]
            assert isinstance(op, LoggedOp)
            events[at] = LoggedOp(op.target, times[key], op.reads, op.creates, op.mutates)
        return EvictionLog(name, tuple(self.sizes), tuple(self.outside), tuple(events))


Step = Callable[[], Tensor]


def record_steps(
    name: str, model: nn.Module, batches: Callable[[], tuple[Tensor, ...]], *, num_steps: int = 3
) -> EvictionLog:
    """Record training steps with SGD and momentum, after one that is not recorded.

    Args:
        name: of the log.
        model: gives the scalar loss.
        batches: draws the inputs of a step; they are outside the arena.
        num_steps: to record.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)

    def step(batch: tuple[Tensor, ...]) -> None:
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step(batches())
    recorder = Recorder()
    for _ in range(num_steps):
        batch = batches()
        with recorder:
            step(batch)
            recorder.end_step()
    recorder.sweep()
    return recorder.log(name)


def recorded(name: str, scale: Scale, num_steps: int, folder: Path | None = None) -> EvictionLog:
    """Record a net of `benchmarks.evict.nets`, or read what an earlier call wrote into the folder."""
    file = folder / f"{name}.{scale}.{num_steps}.json" if folder else None
    if file is not None and file.exists():
        return read_eviction_log(file.read_bytes())
    net = trained(name, scale)
    torch.manual_seed(0)
    log = record_steps(name, net.model, net.batch, num_steps=num_steps)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(write_eviction_log(log))
    return log
