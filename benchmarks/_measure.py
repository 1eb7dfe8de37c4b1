"""What benchmarks measure with: training loops, live bytes, bits, and paired CPU times.

Bytes come from the counting allocator, never from the resident set of the process. Times are
thread-CPU times of one training step, taken in pairs whose order alternates (AB, BA, AB, ...), so
that whatever slows the machine down meets both sides; the result is the median of the ratios.
"""

import gc
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.core import Bytes
from tightrope.native.hook.allocator import Allocator, MemoryStats, ReplayEnd

_NUM_RESAMPLES = 2000
_NUM_WARMUPS = 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired time ratios with a bootstrap 95 % interval."""

    median: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(slots=True)
class Loop:
    """A training loop over one batch.

    Attributes:
        model: owner of parameters and buffers.
        inputs: arguments of ``call``.
        call: what computes the loss: the model, its ``forward``, or a compiled form of it.
        optimizer: steps after each backward; None = weights stay.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    call: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer | None = None

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def step(self) -> Tensor:
        """Run forward, backward and update once, and return the loss without its graph."""
        loss = self.call(*self.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def seconds(self) -> float:
        """Return the thread-CPU seconds of one step that starts without gradients."""
        self.clear()
        start = time.thread_time()
        self.step()
        return time.thread_time() - start


@dataclass(frozen=True, slots=True)
class Bits:
    """Digests of what a run of training steps gave."""

    losses: tuple[str, ...]
    gradients: tuple[str, ...]
    buffers: tuple[str, ...]
    random: str

    def differences(self, other: "Bits") -> str:
        """Name the parts that differ; empty when all bits are equal."""
        parts = ("losses", "gradients", "buffers", "random")
        return ", ".join(part for part in parts if getattr(self, part) != getattr(other, part))


def digest(tensors: Sequence[Tensor | None]) -> str:
    """Hash values, shapes and dtypes; no byte is allocated through torch."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if tensor is None:
            found.update(b"none")
            continue
        array = tensor.detach().numpy()
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def bits(loop: Loop, *, num_steps: int, seed: int = 0, after: Callable[[], None] | None = None) -> Bits:
    """Run consecutive steps from one seed and keep the digests of every step.

    Args:
        loop: what to run; the weights change where it has an optimizer.
        num_steps: steps.
        seed: of the global random state, set once.
        after: called after each step.
    """
    losses, gradients, buffers = [], [], []
    torch.manual_seed(seed)
    for _ in range(num_steps):
        loop.clear()
        losses.append(digest([loop.step()]))
        gradients.append(digest([parameter.grad for parameter in loop.model.parameters()]))
        buffers.append(digest(list(loop.model.buffers())))
        if after is not None:
            after()
    loop.clear()
    state = digest([torch.default_generator.get_state()])
    return Bits(tuple(losses), tuple(gradients), tuple(buffers), state)


def live_peak(loop: Loop, native: Allocator) -> Bytes:
    """Measure the peak of live bytes of one step above those at its start, after warm-up steps."""
    for _ in range(_NUM_WARMUPS):
        loop.clear()
        loop.step()
    loop.clear()
    gc.collect()
    before = native.stats().live
    native.reset_peaks()
    loop.step()
    peak = native.stats().live_peak - before
    loop.clear()
    return peak


class HighWater:
    """The largest number of charged bytes in a ``with`` block.

    The allocator's own peak starts afresh at every part of a step; whoever lets it is listened to.

    Args:
        native: whose bytes are counted.

    Attributes:
        bytes: the most so far.
    """

    def __init__(self, native: Allocator) -> None:
        self.native, self.bytes = native, 0
        self._plain = native.reset_peaks, native.begin_span, native.end_span

    def __enter__(self) -> "HighWater":
        self.bytes = 0
        self._plain[0]()
        for call in (self._reset, self._begin, self._end):
            setattr(self.native, _PATCHED[call.__name__], call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.note()
        for name in _PATCHED.values():
            delattr(self.native, name)

    def note(self) -> None:
        """Look at what is charged since the peak started afresh."""
        self.bytes = max(self.bytes, self.native.stats().charged_peak)

    def _reset(self) -> None:
        self.note()
        self._plain[0]()

    def _begin(self, arena: int, plan: int, *, start: int = 0) -> MemoryStats:
        found = self._plain[1](arena, plan, start=start)
        self.bytes = max(self.bytes, found.charged_peak)
        return found

    def _end(self) -> tuple[ReplayEnd, MemoryStats]:
        ended, found = self._plain[2]()
        self.bytes = max(self.bytes, found.charged_peak)
        return ended, found


_PATCHED: Final = {"_reset": "reset_peaks", "_begin": "begin_span", "_end": "end_span"}


class Timed(Protocol):
    """Something whose steps can be timed one by one."""

    def seconds(self) -> float:
        """Return the thread-CPU seconds of one step."""

    def clear(self) -> None:
        """Drop what steps leave."""


def paired_ratio(step: Timed, base: Timed, *, num_pairs: int) -> Ratio:
    """Compare the time of two loops in interleaved pairs, in this process."""
    for _ in range(_NUM_WARMUPS):
        base.seconds()
        step.seconds()
    ratios = []
    gc.collect()
    gc.disable()
    try:
        for number in range(num_pairs):
            if number % 2:
                mine, other = step.seconds(), base.seconds()
            else:
                other, mine = base.seconds(), step.seconds()
            ratios.append(mine / other)
    finally:
        gc.enable()
        step.clear()
        base.clear()
    return bootstrap(ratios)


def bootstrap(ratios: Sequence[float], *, seed: int = 0) -> Ratio:
    """Give the median and its 95 % interval by resampling."""
    values = np.asarray(ratios)
    drawn = np.random.default_rng(seed).choice(values, size=(_NUM_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(values)), float(low), float(high), len(values))
