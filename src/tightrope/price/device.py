"""What differs between devices for whoever runs ops: the random state, the clock, the kernels' first call.

A state of the generator of a CPU is a tensor of 5,056 bytes. That of a GPU is a seed and an offset, 16 bytes
on the host: what stands for it in a graph is a tensor of as many bytes on the GPU, and this module remembers
the state by that tensor's address, so that nothing waits for the GPU. A state is saved again wherever its
block is reused, so what is found at an address is what was saved there last.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch

from tightrope.core import ALIGNMENT, Bytes, Nanoseconds
from tightrope.native.processor import described

CPU: Final = torch.device("cpu")
_SAVED: dict[int, torch.Tensor] = {}
_WARM = threading.local()
_RUNS, _ENOUGH_MS, _ROUNDS = 20, 2.0, 3


def device_of(tensors: Iterable[Any]) -> torch.device:
    """Name the device of tensors: the first GPU among them, else the CPU.

    >>> device_of([torch.ones(2), None])
    device(type='cpu')
    """
    found = (one.device for one in tensors if isinstance(one, torch.Tensor))
    return next((device for device in found if device.type == "cuda"), CPU)


def device_named(environment: Iterable[tuple[str, str]]) -> torch.device:
    """Read the device from what a graph says of its environment.

    >>> device_named((("device", "cpu"),)), device_named(())
    (device(type='cpu'), device(type='cpu'))
    """
    named = dict(environment).get("device", "").split(",")
    return torch.device(next((name for name in named if name.startswith("cuda")), "cpu"))


def accelerator(device: torch.device) -> tuple[tuple[str, str], ...]:
    """What measured prices depend on, of a GPU: its name and CUDA's version; empty for the CPU."""
    if device.type != "cuda":
        return ()
    name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "none here"
    return (("accelerator", f"{name}, CUDA {torch.version.cuda}"),)


def alignment_on(device: torch.device) -> Bytes:
    """Alignment of blocks on a device: what torch's own allocator gives there."""
    return 512 if device.type == "cuda" else ALIGNMENT


def state_bytes(device: torch.device) -> Bytes:
    """Bytes of the state of a device's generator."""
    if device.type == "cuda":
        return 16
    return int(torch.default_generator.get_state().untyped_storage().nbytes())


def random_state(device: torch.device) -> torch.Tensor:
    """Copy the state of a device's generator, to the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.default_generator.get_state()


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    """Put a device's generator into a state that `random_state` gave."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.default_generator.set_state(state)


def saved_state(device: torch.device) -> torch.Tensor:
    """Make what stands for the present state in a graph; see above."""
    if device.type != "cuda":
        return torch.default_generator.get_state()
    made = torch.empty(16, dtype=torch.uint8, device=device)
    _SAVED[made.data_ptr()] = random_state(device)
    return made


@contextmanager
def in_state(saved: torch.Tensor) -> Iterator[None]:
    """Run what is inside with the generator as ``saved`` says, then put the present state back."""
    device = saved.device
    present = random_state(device)
    set_random_state(_SAVED[saved.data_ptr()] if device.type == "cuda" else saved, device)
    try:
        yield
    finally:
        set_random_state(present, device)


@contextmanager
def same_random_state(device: torch.device) -> Iterator[None]:
    """Put the generators of the CPU and of a device back as they were."""
    states = [(random_state(one), one) for one in {CPU, device}]
    try:
        yield
    finally:
        for state, one in states:
            set_random_state(state, one)


def timed_on_gpu(run: Callable[[], Any], device: torch.device) -> Nanoseconds:
    """Time one run by the events of a GPU: the fastest of a few rounds of back-to-back runs."""
    stream = torch.cuda.current_stream(device)
    best, runs = float("inf"), 1
    for _ in range(_ROUNDS):
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record(stream)
        for _ in range(runs):
            run()
        end.record(stream)
        end.synchronize()
        spent = begin.elapsed_time(end)
        best = min(best, spent / runs)
        if runs == 1 and spent < _ENOUGH_MS:
            runs, best = _RUNS, float("inf")
    return max(int(best * 1e6), 1)


def without_casts(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast of a GPU off; nothing for the CPU."""
    return torch.autocast("cuda", enabled=False) if device.type == "cuda" else nullcontext()


def warm_up(device: torch.device) -> None:
    """Let matrix products of the calling thread take their workspaces, once for each thread and stream.

    Otherwise the first planned part of a thread would allocate what no other run of it does.
    """
    known = _WARM.__dict__.setdefault("streams", set())
    if device.type != "cuda" or (key := (device, torch.cuda.current_stream(device).cuda_stream)) in known:
        return
    known.add(key)
    with torch.no_grad(), torch.autocast("cuda", enabled=False):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            one = torch.ones(64, 64, device=device, dtype=dtype)
            torch.addmm(one[0], one, one)
            torch.bmm(one[None], one[None])


def processor() -> str:
    """Name the processor and the instructions that torch's kernels use on it.

    Returns:
        A name for people, a digest of what the system says of the processor, and torch's capability.

    Example:
        >>> processor()  # doctest: +SKIP
        'AMD EPYC 5f0c1d22 AVX512'
    """
    name, digest = described()
    return f"{name} {digest} {torch.backends.cpu.get_cpu_capability()}"
