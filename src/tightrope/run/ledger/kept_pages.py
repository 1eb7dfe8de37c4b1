"""What is charged for blocks that stay where everything around them was given back: whole pages."""

from collections.abc import Sequence
from typing import Final

import torch

from tightrope.core import Alloc, Bytes, Executable, Release, round_up
from tightrope.core.executable import ARENA, HEAP

PAGE: Final[Bytes] = 4096


def by_page(size: Bytes) -> Bytes:
    """The most that one block of so many bytes is charged, wherever it lies.

    >>> by_page(4)
    8192
    """
    return round_up(size, PAGE) + PAGE


def left_by(executable: Executable) -> Bytes:
    """Bytes that stay charged for the results of an executable, while its arena is idle."""
    left = {item.buffer: item for item in executable.flat() if isinstance(item, Alloc)}
    for item in executable.flat():
        if isinstance(item, Release):
            left.pop(item.buffer, None)
    pages: set[int] = set()
    total = 0
    for item in left.values():
        if item.space == ARENA:
            pages.update(range(item.offset // PAGE, -(-(item.offset + item.bytes) // PAGE)))
        elif item.space == HEAP:
            total += by_page(item.bytes)
    return total + PAGE * len(pages)


def freed_by(goes: Sequence[torch.Tensor], stays: Sequence[torch.Tensor]) -> Bytes:
    """The least that is no longer charged when some tensors go while others stay.

    Args:
        goes: tensors, each the only owner of its storage.
        stays: beside them, in the same arena or anywhere else.
    """
    pages = PAGE * len(_pages(goes) - _pages(stays))
    return min(pages, sum(round_up(tensor.untyped_storage().nbytes()) for tensor in goes))


def _pages(tensors: Sequence[torch.Tensor]) -> set[int]:
    pages: set[int] = set()
    for storage in (tensor.untyped_storage() for tensor in tensors):
        start = storage.data_ptr()
        pages.update(range(start // PAGE, -(-(start + storage.nbytes()) // PAGE)))
    return pages
