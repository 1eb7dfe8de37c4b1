"""Independent judges and instance generators for the placer's tests."""

import random
from collections.abc import Mapping, Sequence

Buffer = tuple[int, int, int]

GAPS: list[list[Buffer]] = [
    [(9, 5, 6), (1, 0, 3), (12, 0, 1), (5, 1, 2), (4, 2, 6), (7, 1, 5), (4, 3, 4)],
    [(3, 3, 7), (2, 4, 8), (4, 3, 4), (1, 0, 5), (4, 6, 7), (7, 7, 9), (7, 1, 2)],
    [(1, 2, 8), (2, 0, 3), (1, 3, 8), (2, 4, 5), (10, 0, 5), (2, 1, 2), (1, 2, 4), (12, 6, 7)],
    [(3, 4, 8), (14, 6, 7), (14, 3, 4), (8, 3, 7), (11, 1, 2), (1, 0, 5), (11, 1, 2), (18, 7, 8)],
    [(1, 4, 8), (1, 0, 5), (5, 5, 6), (1, 2, 6), (2, 2, 9), (8, 1, 2), (6, 7, 8), (5, 2, 3)],
]
"""Instances that need one unit more than their load."""


def check(
    buffers: Sequence[Buffer],
    offsets: Sequence[int],
    *,
    peak: int,
    alignments: Sequence[int] | None = None,
    fixed: Mapping[int, int] | None = None,
) -> None:
    """Fail unless every pair of buffers alive together is apart, aligned and below the peak."""
    assert len(offsets) == len(buffers)
    for a, (size, start, end) in enumerate(buffers):
        assert offsets[a] >= 0
        assert alignments is None or offsets[a] % alignments[a] == 0
        for b in range(a):
            other, begin, finish = buffers[b]
            together = start < finish and begin < end and size > 0 and other > 0
            assert not together or offsets[a] >= offsets[b] + other or offsets[b] >= offsets[a] + size, (a, b)
    assert all(offsets[index] == offset for index, offset in (fixed or {}).items())
    tops = (offset + size for offset, (size, _, _) in zip(offsets, buffers, strict=True) if size)
    assert peak == max(tops, default=0)


def load_bound(buffers: Sequence[Buffer]) -> int:
    """Largest sum of sizes alive at the start of some buffer."""
    return max(
        (sum(size for size, start, end in buffers if start <= now < end) for _, now, _ in buffers), default=0
    )


def smallest_peak(
    buffers: Sequence[Buffer],
    *,
    alignments: Sequence[int] | None = None,
    fixed: Mapping[int, int] | None = None,
) -> int:
    """Try every order of lowest-address placement; one of them is optimal."""
    align = alignments or [1] * len(buffers)
    best = (
        sum(size for size, _, _ in buffers)
        + sum(align) * len(buffers)
        + max((fixed or {}).values(), default=0)
    )

    def extend(placed: dict[int, int], peak: int) -> None:
        nonlocal best
        if peak >= best:
            return
        if len(placed) == len(buffers):
            best = peak
        for index in range(len(buffers)):
            if index not in placed:
                offset = _lowest(buffers, placed, index, align[index])
                extend({**placed, index: offset}, max(peak, offset + buffers[index][0]))

    extend(
        dict(fixed or {}),
        max((offset + buffers[index][0] for index, offset in (fixed or {}).items()), default=0),
    )
    return best


def _lowest(buffers: Sequence[Buffer], placed: Mapping[int, int], index: int, align: int) -> int:
    size, start, end = buffers[index]
    taken = sorted(
        (offset, offset + buffers[k][0])
        for k, offset in placed.items()
        if buffers[k][1] < end and start < buffers[k][2]
    )
    offset = 0
    for low, high in taken:
        if low < offset + size and high > offset:
            offset = -(-high // align) * align
    return offset


def tangle(seed: int, count: int = 7, *, span: int = 8, largest: int = 9) -> list[Buffer]:
    """Draw short overlapping lifetimes; nearly all of them need no more than their load."""
    draw = random.Random(seed)
    buffers = []
    for _ in range(count):
        start = draw.randrange(span - 1)
        buffers.append((draw.randint(1, largest), start, draw.randint(start + 1, min(span, start + 4))))
    return buffers


def training_step(num_layers: int, *, recompute: bool, seed: int = 0) -> list[Buffer]:
    """Forward activations, their recomputed copies, gradients and workspaces of a stack of layers."""
    draw = random.Random(seed)
    sizes = [64 * draw.choice((8, 12, 32, 48, 128)) for _ in range(6)]
    now, kept, buffers = 0, [], []
    for _ in range(num_layers):
        for size in sizes:
            kept.append((size, now))
            now += 1
    for position, (size, start) in enumerate(reversed(kept)):
        if recompute and position % 3:
            buffers += [(size, start, start + 2), (size, now, now + 2)]
        else:
            buffers.append((size, start, now + 2))
        buffers += [(size, now, now + 3), (64 * draw.randint(1, 64), now + 1, now + 2)]
        now += 2
    return buffers
