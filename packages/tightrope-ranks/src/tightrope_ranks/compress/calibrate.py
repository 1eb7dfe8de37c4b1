"""What codecs and the link take, measured on the gradients and the queue that are used.

Idea        Encode and decode the stream as one message, and its smallest gradient alone; send messages of two
            sizes, the larger one so long that it takes a good part of a second at most. Straight lines
            through both are the costs. All ranks measure together, and the slowest counts.
Guarantee   All ranks return equal costs.
Complexity  A second or two per codec; less on fast links.
Gaps        Wall-clock medians: a busy machine measures slow codecs.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

import torch
from torch import Tensor, distributed

from tightrope.core import Bytes
from tightrope_ranks.compress.codecs import CODECS, Codec, Encoded, Group, exchange
from tightrope_ranks.compress.queue import MessageQueue
from tightrope_ranks.values.exchange import CodecCost

_REPEATS: Final = 5
_SMALL: Final[Bytes] = 64 * 1024
_SECONDS: Final = 0.25
"""Of the larger message."""
_MOST: Final[Bytes] = 16 * 2**20
_MOST_ERROR: Final = 1e6
"""Of a codec, relative; what is not finite counts as this."""


def calibrate(
    counts: Sequence[int], names: Sequence[str], queue: MessageQueue, group: Group | None
) -> tuple[CodecCost, ...]:
    """Measure codecs on tensors of the sizes of a stream, and the link.

    Args:
        counts: numbers in each gradient.
        names: of codecs.
        queue: that messages will go through.
        group: of the model's ranks, which have to call this together.
    """
    ranks = distributed.get_world_size(group)
    codecs = [CODECS[name] for name in names]
    whole = 4 * sum(counts)
    wires = {
        kind: _wire(kind, whole, ranks, queue, group) for kind in sorted({_sum_of(one) for one in codecs})
    }
    found = []
    for codec in codecs:
        encode, decode = _codec(codec, counts, ranks)
        fixed, rate = wires[_sum_of(codec)]
        sizes = [codec.size(count) for count in counts]
        per_byte = sum(sizes) / (4 * sum(counts))
        found.append((*encode, *decode, fixed, rate * per_byte))
    table = torch.tensor(found, dtype=torch.float64)
    wait(queue, lambda: distributed.all_reduce(table, distributed.ReduceOp.MAX, group), "costs of codecs")
    return tuple(
        CodecCost(
            codec.name, (row[0], row[1]), (row[4], row[5]), (row[2], row[3]), _sent(codec, counts, ranks)
        )
        for codec, row in zip(codecs, table.tolist(), strict=True)
    )


def relative_errors(
    names: Sequence[str],
    given: Sequence[Tensor],
    exact: Sequence[Tensor],
    ids: Sequence[int],
    step: int,
    queue: MessageQueue,
    group: Group,
) -> list[float]:
    """Measure how far the mean that each codec delivers is from the exact mean.

    The difference is relative to the size of the mean, or of the mean of as large gradients of random
    directions, where that is larger: what differs between ranks often cancels in a bias of few numbers. The
    gradient that is farthest off counts. Residuals are not used.

    Args:
        names: of codecs.
        given: gradients of this rank.
        exact: their means over the ranks.
        ids: numbers of the gradients, for random rounding.
        step: seed, likewise.
        queue: of this rank.
        group: of the model; all its ranks call this together.

    Returns:
        One figure per codec, equal on all ranks.
    """
    ranks = distributed.get_world_size(group)
    squares = _squares(given)
    wait(queue, lambda: distributed.all_reduce(squares, group=group), "sizes of gradients")
    scale = torch.maximum(_squares(exact), squares / ranks**2)
    found = []
    for name in names:
        encoded = CODECS[name].encode(given, None, ids, step, ranks)
        wait(queue, partial(exchange, encoded, group), f"gradients by {name}")
        got = [torch.empty_like(one) for one in given]
        CODECS[name].decode(encoded, got, ranks)
        off = _squares([one - other for one, other in zip(got, exact, strict=True)])
        found.append(torch.where(off == 0, 0.0, off / scale).sqrt().max())
    errors = torch.stack(found).nan_to_num(_MOST_ERROR).clamp(max=_MOST_ERROR)
    wait(queue, lambda: distributed.all_reduce(errors, distributed.ReduceOp.MAX, group), "errors of codecs")
    return list(errors.tolist())


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in tensors]).square()


def wait(queue: MessageQueue, send: Callable[[], object], what: str, sent: Bytes = 0) -> None:
    """Send something and wait until it is through."""
    queue.wait(queue.put(lambda: (send(), None)[1], what, sent))


def _sent(codec: Codec, counts: Sequence[int], ranks: int) -> tuple[Bytes, ...]:
    return tuple(codec.sent(count, ranks) for count in counts)


def _sum_of(codec: Codec) -> str:
    return codec.name if codec.kind == "reduce" else "gather"


def line(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Return the straight line through two points of bytes and seconds; it begins at 0 or above, and rises.

    Where noise has the larger message faster than the smaller one, both take what the larger one took.

    >>> line((10, 2.0), (30, 4.0)), line((10, 3.0), (20, 2.0))
    ((1.0, 0.1), (2.0, 0.0))
    """
    fixed = min(small[1], large[1])
    if large[1] > small[1]:
        fixed = max(0.0, small[1] - (large[1] - small[1]) / max(large[0] - small[0], 1) * small[0])
    return fixed, (large[1] - fixed) / large[0]


def _timed(run: Callable[[], object]) -> float:
    run()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _codec(
    codec: Codec, counts: Sequence[int], ranks: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    tensors = [torch.randn(count) for count in counts]
    rests = [torch.zeros(count) for count in counts] if codec.feedback else None
    least = min(range(len(counts)), key=counts.__getitem__)
    points: list[tuple[float, float, float]] = []
    for some in ([least], range(len(counts))):
        chosen = [tensors[at] for at in some]
        kept = [rests[at] for at in some] if rests is not None else None
        encoded = codec.encode(chosen, kept, list(some), 0, ranks)
        if encoded.gathered is not None:
            encoded.gathered[:] = encoded.wire
        encode = _timed(partial(codec.encode, chosen, kept, list(some), 0, ranks))
        decode = _timed(partial(codec.decode, encoded, chosen, ranks))
        points.append((4.0 * sum(one.numel() for one in chosen), encode, decode))
    (size, quick, quick_back), (whole, long, long_back) = points
    return line((size, quick), (whole, long)), line((size, quick_back), (whole, long_back))


def _wire(
    kind: str, whole: Bytes, ranks: int, queue: MessageQueue, group: Group | None
) -> tuple[float, float]:
    """Seconds of a message, and per byte that a rank encoded; no message is larger than ``whole``."""

    def seconds(size: Bytes) -> float:
        if kind == "gather":
            wire = torch.zeros(size, dtype=torch.uint8)
            encoded = Encoded(wire, torch.empty((ranks, size), dtype=torch.uint8))
        else:
            dtype = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
            encoded = Encoded(torch.zeros(size // dtype.itemsize, dtype=dtype), None)
        sent = (ranks - 1) * size if kind == "gather" else 2 * (ranks - 1) * size // ranks
        return _timed(lambda: wait(queue, lambda: exchange(encoded, group), f"a {kind} message", sent))

    tiny, small = seconds(_SMALL // 64), seconds(_SMALL)
    most = min(_MOST, max(whole, 2 * _SMALL)) / _SMALL
    guess = torch.tensor([_SMALL * max(2.0, min(most, _SECONDS / _REPEATS / small))])
    wait(queue, lambda: distributed.broadcast(guess, group_src=0, group=group), "a size")
    large = int(guess) // 64 * 64
    return line((_SMALL // 64, tiny), (large, seconds(large)))
