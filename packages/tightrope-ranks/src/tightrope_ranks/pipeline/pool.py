"""What torch's caching allocator for CUDA takes from the device for a row of allocations and frees.

Idea        The allocator takes segments from the device, cuts blocks from them, and keeps what is freed. So a
            step takes more than it holds at any time: a block that fits into no hole gets a segment.
            `RunSeen` writes down what a layer allocates and frees, forward and backward, on shapes alone.
Source      Torch's c10/cuda/CUDACachingAllocator.cpp with its defaults; sizes below are its constants.
Guarantee   As the allocator in one stream: the same rounding, the smallest hole that fits, the same cuts.
Complexity  Logarithmic in the holes, and a shift of their list, per allocation.
Gaps        One stream. Nothing is given back to the device, which torch does before it reports that memory is
            out. Segments that grow (``expandable_segments``) take less.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import torch

from tightrope.capture._eager import ops_shown, tensors_in
from tightrope.capture._torch import storage_key, watch_storage
from tightrope.core.units import Bytes, round_up

SMALL: Final = 1 << 20
"""Blocks of at most so many bytes lie in segments of their own, of `SMALL_SEGMENT` bytes."""
SMALL_SEGMENT: Final = 2 << 20
MEDIUM: Final = 10 << 20
"""Larger blocks get a segment of their size in steps of `SMALL_SEGMENT`; smaller ones share one."""
MEDIUM_SEGMENT: Final = 20 << 20


class Pool:
    """Segments and the blocks in them.

    Attributes:
        reserved: bytes of all segments.

    >>> pool = Pool()
    >>> first = pool.allocate(12 << 20)
    >>> pool.free(first)
    >>> blocks = pool.allocate(8 << 20), pool.allocate(6 << 20)  # into the hole; a segment of 20 MiB
    >>> pool.reserved >> 20
    32
    """

    def __init__(self) -> None:
        self.reserved: Bytes = 0
        self._holes: tuple[list[tuple[Bytes, int]], ...] = ([], [])  # size and address; large, small
        self._ends: dict[int, int] = {}  # of holes: where they end, to where they begin
        self._starts: dict[int, int] = {}
        self._sizes: dict[int, tuple[Bytes, bool]] = {}
        self._next = 0

    def allocate(self, size: Bytes) -> int:
        """Return the address of a new block."""
        size = max(512, round_up(size, 512))
        small = size <= SMALL
        place = bisect_left(self._holes[small], (size, 0))
        if place < len(self._holes[small]):
            have, at = self._holes[small][place]
            self._fill(at, small)
        else:
            segment = SMALL_SEGMENT if small else MEDIUM_SEGMENT
            have = round_up(size, SMALL_SEGMENT) if size >= MEDIUM else segment
            at, self._next = self._next, self._next + have + 1  # neighbours of two segments do not touch
            self.reserved += have
        if have - size >= (512 if small else SMALL + 1):
            self._open(at + size, have - size, small)
            have = size
        self._sizes[at] = have, small
        return at

    def free(self, at: int) -> None:
        """Take a block back, and join it with the holes next to it."""
        size, small = self._sizes.pop(at)
        if at + size in self._starts:
            size += self._fill(at + size, small)
        if at in self._ends:
            at = self._ends[at]
            size += self._fill(at, small)
        self._open(at, size, small)

    def _open(self, at: int, size: Bytes, small: bool) -> None:
        self._starts[at], self._ends[at + size] = at + size, at
        insort(self._holes[small], (size, at))

    def _fill(self, at: int, small: bool) -> Bytes:
        end = self._starts.pop(at)
        del self._ends[end], self._holes[small][bisect_left(self._holes[small], (end - at, at))]
        return end - at


@dataclass(frozen=True, slots=True)
class LayerRun:
    """What a layer allocates and frees; tensors have numbers, and its input and parameters have none.

    Attributes:
        events: in order, a number and bytes; 0 bytes = it is freed.
        forward: how many of them the forward has.
        output: number of the output.
        incoming: of the gradient of the output; 0 = there is no backward.
        outgoing: of the gradient of the input; 0 = it has none.
        gradients: of those of parameters.
    """

    events: tuple[tuple[int, Bytes], ...]
    forward: int
    output: int
    incoming: int = 0
    outgoing: int = 0
    gradients: frozenset[int] = frozenset()


class RunSeen:
    """A layer whose ops are shown: what they make is allocated, what nobody holds any more is freed.

    Args:
        held: tensors that are there before: the input, then parameters and buffers.
    """

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        self._events: list[tuple[int, Bytes]] = []
        self._tensors = list(held)
        self._held = {storage_key(one) for one in self._tensors}
        self._live: dict[int, tuple[int, Callable[[], bool]]] = {}  # by storage: its number, and whether gone

    def see(self, made: Iterable[torch.Tensor]) -> None:
        """Note what an op has made."""
        for key, (number, gone) in list(self._live.items()):
            if gone():
                self._events.append((number, 0))
                del self._live[key]
        for one in made:
            key, size = storage_key(one), one.untyped_storage().nbytes()
            if key not in self._live and key not in self._held and size:
                number = len(self._events) + 1
                self._live[key] = number, watch_storage(one)
                self._events.append((number, size))

    def ran(self, output: torch.Tensor) -> LayerRun | None:
        """Run the backward, too, and return what was seen; None = a derivative fails on shapes."""
        self.see(())
        forward, came = len(self._events), self._number(output)
        if not output.requires_grad:
            return LayerRun(tuple(self._events), forward, came)
        try:
            with ops_shown(lambda _op, _given, result: self.see(tensors_in(result))):
                along = torch.empty_like(output)
                output.backward(along)  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError):
            return None
        incoming, (given, *others) = self._number(along), self._tensors
        gradients = frozenset(self._number(one.grad) for one in others) - {0}
        return LayerRun(tuple(self._events), forward, came, incoming, self._number(given.grad), gradients)

    def _number(self, tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else self._live.get(storage_key(tensor), (0, None))[0]
