"""Run a written file in plain PyTorch and tell what it took: the peak, what ran again, and what differs."""

import copy
import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from tightrope.capture._eager import ops_shown
from tightrope.core import NativeError
from tightrope.native.hook.allocator import allocator
from tightrope_export._torch import IGNORED
from tightrope_export.record import loss_of
from tightrope_export.values.form import Shown


def imported(path: Path) -> ModuleType:
    """Import a written file."""
    module = ModuleType(f"exported_{path.stem}")
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(module))
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
        self.model, self.args, self.kwargs = copy.deepcopy(model), tuple(args), dict(kwargs or {})
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
        for _ in range(2):
            self.reset()
            gc.collect()
            before = hook.stats().live
            hook.reset_peaks()
            self.step()
        return hook.stats().live_peak - before

    @cached_property
    def bits(self) -> dict[str, bytes]:
        """The bits of the loss, of all gradients and of all buffers after a step."""
        self.reset()
        found = {"loss": loss_of(self.step()), "random state": torch.get_rng_state()}
        found |= {f"buffer {name}": buffer for name, buffer in self.model.named_buffers()}
        for name, parameter in self.model.named_parameters():
            found[f"gradient of {name}"] = torch.empty(0) if parameter.grad is None else parameter.grad
        return {name: _bits(tensor) for name, tensor in found.items()}

    @cached_property
    def counts(self) -> tuple[Counter[str], int]:
        """How often each op runs in a step, and how many tensors hooks around it see autograd save."""
        ran: Counter[str] = Counter()

        def note(one: Any, *_: Any) -> Any:
            ran["" if isinstance(one, torch.Tensor) else str(one)] += 1
            return one

        self.reset()
        with saved_tensors_hooks(note, lambda tensor: tensor), ops_shown(note):
            self.step()
        saved = ran.pop("", 0)
        return Counter({name: times for name, times in ran.items() if name not in IGNORED}), saved


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def shown(plain: Player, changed: Player) -> Shown:
    """Run both and compare."""
    ran, saved = changed.counts
    again = {name: more for name in ran if (more := ran[name] - plain.counts[0][name]) > 0}
    differs = tuple(name for name, bits in plain.bits.items() if changed.bits.get(name) != bits)
    return Shown(changed.peak(), tuple(sorted(again.items())), saved, differs)
