"""Plans of streams with deadlines, simulated and scored in C++."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightrope.native.interface import POINTER, Handle, declare, integers, load, missing


def available() -> bool:
    """Whether it was built, or can be."""
    return not missing("streams")


class StreamScorer(Handle):
    """Score plans of one case.

    Args:
        shape: whole numbers, in the order that ``streams.cpp`` gives.
        values: real numbers, likewise.
        num_frames: frames of all models.
    """

    def __init__(self, shape: Sequence[int], values: Sequence[float], num_frames: int) -> None:
        native = load("streams")
        declare(native, "streams", (POINTER, POINTER), {"score": (POINTER, POINTER, POINTER)})
        reals = np.asarray([*values, 0.0], dtype=np.float64)
        super().__init__(native, "streams", integers(shape), reals.ctypes.data)
        self._found = np.zeros(2 + num_frames)

    def score(
        self, processors: NDArray[np.int64], ranks: NDArray[np.float64]
    ) -> tuple[float, int, NDArray[np.float64]]:
        """Simulate a plan.

        Args:
            processors: by frame; -1 = dropped as soon as it appears.
            ranks: by frame, its order on its processor.

        Returns:
            The score of 100, the largest number of bytes in the arena, and by frame when it started (-1 =
            never; valid until the next call).
        """
        self.call("score", processors.ctypes.data, ranks.ctypes.data, self._found.ctypes.data)
        return float(self._found[0]), int(self._found[1]), self._found[2:]
