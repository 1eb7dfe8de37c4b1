"""Numbers that never change, in one array in flash: a tensor of them is a view without bytes of RAM.

Idea        Inference changes no weight, so weights are read where they lie. A view of them has the base
            `EMPTY`: planner, placer and judge see no storage, and the C reads ``tr_constants``.
Guarantee   Every tensor begins at a multiple of 4 bytes and lies in the order of its indices.
Complexity  Linear in bytes.
Gaps        Equal tensors are kept once only where they are put twice as the same bytes and dtype.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightrope.core import View
from tightrope.core.values import EMPTY
from tightrope_micro.translator import contiguous

_WORD = 4


@dataclass
class Constants:
    """All constants of a net.

    Attributes:
        data: bytes of the array in flash.

    Example:
        >>> constants = Constants()
        >>> constants.put(np.array([1, 2], np.int8)).offset, constants.put(np.array([3.0], np.float32)).offset
        (0, 1)
        >>> constants.read(constants.put(np.array([3.0], np.float32))).tolist()
        [3.0]
    """

    data: bytearray = field(default_factory=bytearray)
    known: dict[tuple[str, bytes], int] = field(default_factory=dict)

    def put(self, array: NDArray[Any]) -> View:
        """Keep an array; returns how it is seen: its offset counts elements from the start of ``data``."""
        array = np.ascontiguousarray(array)
        key = (str(array.dtype), array.tobytes())
        if key not in self.known:
            self.data += bytes(-len(self.data) % _WORD)
            self.known[key] = len(self.data)
            self.data += key[1]
        at = self.known[key] // array.dtype.itemsize
        return View(EMPTY, key[0], array.shape, contiguous(array.shape), at)

    def read(self, view: View) -> NDArray[Any]:
        """Read an array that was kept."""
        return np.frombuffer(
            bytes(self.data), view.dtype, prod(view.shape), view.offset * np.dtype(view.dtype).itemsize
        ).reshape(view.shape)


def is_constant(value: object) -> bool:
    """Tell whether an argument is a tensor in flash."""
    return isinstance(value, View) and value.base == EMPTY
