"""What is known of an op that ran, so that it can run again without the tensors that it had.

A tensor is remembered as a place in a storage; a storage as its record's number in the arena. When an op in
place makes a new version, the object that stands for the old one gets the number of the old version's record,
so whatever refers to it goes on to mean the old bytes.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from tightrope.core.units import Nanoseconds

storage_of: Final = torch.Tensor.untyped_storage
"""As it is outside `watched_reads`."""


_REAL: Final = frozenset(
    (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
)
"""Types whose tensors are neither conjugates nor quantized."""


class Version:
    """One version of a storage's bytes; ``id`` is its record in the arena, or -1 when that is gone.

    Attributes:
        depth: changes in place that running its calls again would repeat.
    """

    __slots__ = ("blank", "call", "depth", "exposed", "id")

    def __init__(self, identity: int, call: "Call | None" = None) -> None:
        self.id, self.call = identity, call
        self.blank = self.exposed = False
        self.depth = 0


class Place:
    """A tensor as a place in a version of a storage; an ``odd`` one is more than that."""

    __slots__ = ("dtype", "odd", "offset", "size", "stride", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.version: Version
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset, self.dtype = tensor.storage_offset(), tensor.dtype
        self.odd = tensor.is_neg() or (self.dtype not in _REAL and (tensor.is_conj() or tensor.is_quantized))


class Call:
    """One run of an op: enough to run it again.

    Attributes:
        func: the overload.
        args: with a `Place` for every tensor.
        kwargs: likewise.
        inputs: versions that it reads, each once.
        ns: its time: the least so far on such sizes.
        size: the most bytes that it has allocated at once, temporaries included.
        largest: bytes of its largest storage.
        outputs: versions that it made, by position among the tensors that it returned; None: not its own.
        changed: (old version, new version) of what it changed in place.
        grad: whether gradients were on, which some kernels ask.
        default: type of numbers that ops made where none was named.
        state: generator and its state before the first run.
    """

    __slots__ = (
        "args", "changed", "default", "func", "grad", "inputs", "kwargs", "largest", "ns", "outputs", "size",
        "state",
    )  # fmt: skip

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ns: Nanoseconds) -> None:
        self.func, self.args, self.kwargs, self.ns = func, args, kwargs, ns
        self.inputs: list[Version] = []
        self.outputs: list[Version | None] = []
        self.changed: list[tuple[Version, Version]] = []
        self.size = self.largest = 0
        self.grad, self.default = torch.is_grad_enabled(), torch.get_default_dtype()
        self.state: tuple[torch.Generator, torch.Generator] | None = None


def tensors_of(result: Any) -> list[torch.Tensor]:
    """List the tensors that an op returned, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for one in result for tensor in tensors_of(one)]
    return []


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep Python from freeing tensors in cycles inside a ``with`` block, so that no listed record goes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
