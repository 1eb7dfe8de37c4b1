"""Divisions that others use, which are starts of the search and peers in the benchmark."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from tightrope.core import Bytes

CAPS: Final[tuple[Bytes, ...]] = (*(2**power for power in range(16, 28)), 25 * 2**20)
"""Bytes of buckets; the last is that of DistributedDataParallel."""


def by_cap(sizes: Sequence[Bytes], cap: Bytes) -> tuple[int, ...]:
    """Close a bucket with the gradient that brings it to ``cap`` bytes.

    >>> by_cap([3, 3, 3, 3], 6)
    (2, 4)
    """
    ends, filled = [], 0
    for number, size in enumerate(sizes):
        filled += size
        if filled >= cap or number == len(sizes) - 1:
            ends.append(number + 1)
            filled = 0
    return tuple(ends)


def even(sizes: Sequence[Bytes], num: int) -> tuple[int, ...]:
    """Divide into ``num`` messages of about equal bytes, fewer where gradients are larger than that.

    >>> even([1, 1, 1, 1], 2), even([9, 1, 1, 1], 4)
    ((2, 4), (1, 4))
    """
    whole, ends, share = sum(sizes), [], 1
    for number, total in enumerate(accumulate(sizes), 1):
        if total * num >= whole * share or number == len(sizes):
            ends.append(number)
            while share <= num and total * num >= whole * share:
                share += 1
    return tuple(dict.fromkeys((*ends, len(sizes))))


def divisions(sizes: Sequence[Bytes]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield named divisions: layer-wise, single, every bucket cap, even splits, and two messages."""
    num = len(sizes)
    yield "layer-wise", tuple(range(1, num + 1))
    yield "single", (num,)
    yield from ((f"cap {cap}", by_cap(sizes, cap)) for cap in CAPS)
    yield from ((f"even {parts}", even(sizes, parts)) for parts in range(2, min(num, 64) + 1))
    yield from ((f"two at {cut}", (cut, num)) for cut in range(1, num))
