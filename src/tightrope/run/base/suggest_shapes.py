"""Say once that ``shapes="bucket"`` is there, where a model is captured anew for size after size."""

from collections.abc import Sequence
from typing import Any, Final

import torch

_MANY: Final = 3


class SizesSeen:
    """The sizes of the inputs that a model was captured with.

    Example:
        >>> seen = SizesSeen()
        >>> [bool(seen.hint([torch.ones(rows, 4)])) for rows in (1, 2, 2, 3, 4)]
        [False, False, False, True, False]
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[Any, ...], set[tuple[torch.Size, ...]]] = {}
        self._told = False

    def hint(self, given: Sequence[Any]) -> str:
        """Note the inputs of a capture; at the third sizes of like inputs return a line, once."""
        tensors = [
            one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter)
        ]
        sizes = self._sizes.setdefault(tuple((one.dtype, one.dim()) for one in tensors), set())
        sizes.add(tuple(one.shape for one in tensors))
        if self._told or len(sizes) < _MANY:
            return ""
        self._told = True
        return (
            f"inputs came in {_MANY} sizes, and each was captured and planned by itself. If more follow, "
            'compile(..., shapes="bucket") captures once for all sizes'
        )
