"""Run a written file in plain PyTorch and tell what it took: the peak, what ran again, and what differs."""

import copy
import gc
import importlib.util
import statistics as averages
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from tightrope.core import NativeError
from tightrope.native.hook.allocator import allocator
from tightrope_export._torch import IGNORED, StepWatch
from tightrope_export.record import loss_of
from tightrope_export.values.form import Shown


def imported(path: Path) -> ModuleType:
    """Import a written file."""
    spec = importlib.util.spec_from_file_location(f"exported_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Player:
    """A copy of a model, whose steps all begin from the same weights, buffers and random state.

    Args:
        model: is copied.
        args: of its call.
        kwargs: likewise.
        change: applied to the copy.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        change: Callable[[nn.Module], object] | None = None,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.args, self.kwargs = tuple(args), dict(kwargs or {})
        if change is not None:
            change(self.model)
        self._start = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}

    def reset(self) -> None:
        """Go back to where every step begins."""
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self._start[name])
        torch.manual_seed(7)

    def step(self) -> Any:
        """Run forward and backward once; returns what the model returned."""
        result = self.model(*self.args, **self.kwargs)
        torch.autograd.backward(loss_of(result))
        return result

    def peak(self) -> int:
        """The most bytes of the allocator above those before a step, the second of two."""
        hook = allocator()
        if hook is None:
            raise NativeError("peaks are observed by the native part: run tightrope doctor.")
        self.reset()
        self.step()
        self.reset()
        gc.collect()
        before = hook.stats().live
        hook.reset_peaks()
        self.step()
        found = hook.stats().live_peak - before
        self.model.zero_grad(set_to_none=True)
        return found

    @cached_property
    def bits(self) -> dict[str, bytes]:
        """The bits of the loss, of all gradients and of all buffers after a step."""
        self.reset()
        found = {"loss": _bits(loss_of(self.step()).detach())}
        for name, parameter in self.model.named_parameters():
            found[f"gradient of {name}"] = b"" if parameter.grad is None else _bits(parameter.grad)
        found |= {f"buffer {name}": _bits(buffer) for name, buffer in self.model.named_buffers()}
        found["random state"] = _bits(torch.get_rng_state())
        self.model.zero_grad(set_to_none=True)
        return found

    @cached_property
    def ops(self) -> Counter[str]:
        """How often each op runs in a step."""
        found: Counter[str] = Counter()

        def ran(function: Any, *_: Any) -> None:
            found[str(function)] += 1

        self.reset()
        with StepWatch(lambda: None, ran):
            self.step()
        self.model.zero_grad(set_to_none=True)
        return Counter({name: times for name, times in found.items() if name not in IGNORED})

    @cached_property
    def saved(self) -> int:
        """How many tensors autograd saves in a step, as hooks around it see."""
        found: list[None] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            found.append(None)
            return tensor

        self.reset()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.step()
        self.model.zero_grad(set_to_none=True)
        return len(found)

    def seconds(self) -> float:
        """Thread-CPU time of one step."""
        self.reset()
        began = time.thread_time()
        self.step()
        return time.thread_time() - began


def _bits(tensor: torch.Tensor) -> bytes:
    return np.ascontiguousarray(tensor.detach().reshape(-1).view(torch.uint8).numpy()).tobytes()


def shown(plain: Player, changed: Player) -> Shown:
    """Run both and compare."""
    with_, without = changed.ops, plain.ops
    again = {name: with_[name] - without[name] for name in with_ if with_[name] > without[name]}
    ours, theirs = changed.bits, plain.bits
    differs = tuple(name for name in theirs if ours.get(name) != theirs[name])
    return Shown(changed.peak(), tuple(sorted(again.items())), changed.saved, differs)


def time_ratio(first: Player, second: Player, pairs: int) -> float:
    """The median ratio of the times of two steps, the second over the first, run in pairs of both orders."""
    found = []
    for number in range(pairs + 1):
        order = (first, second) if number % 2 else (second, first)
        spent = {id(one): one.seconds() for one in order}
        found.append(spent[id(second)] / max(spent[id(first)], 1e-9))
    return averages.median(found[1:])
