"""Reads that are no op of torch: they bring a tensor's bytes back first.

``.numpy()``, ``.data_ptr()`` and their kin hand out the address of the bytes, and whoever has it may write
there. So such a storage stays, and so does what was or is made from it. Printing, copying and saving read at
once and keep nothing.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
import torch.utils.dlpack

_HAND_OUT: Final = (
    "numpy",
    "data_ptr",
    "untyped_storage",
    "storage",
    "__array__",
    "__dlpack__",
    "share_memory_",
)
_WITH_DLPACK: Final[tuple[Any, ...]] = (torch, torch.utils.dlpack)
"""Modules with a `to_dlpack`, which is no method; a name that code took from them before is not noticed."""
_READ: Final = ("tolist", "__repr__", "__deepcopy__", "__reduce_ex__", "apply_", "map_", "map2_")


@contextmanager
def watched_reads(reading: Callable[[torch.Tensor, bool], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside a ``with`` block, run such reads of any tensor within ``reading(tensor, hands_out)``."""
    own = vars(torch.Tensor)
    before = {name: own.get(name) for name in (*_HAND_OUT, *_READ)}
    to_dlpack = _WITH_DLPACK[0].to_dlpack
    try:
        for name in before:
            setattr(torch.Tensor, name, _within(getattr(torch.Tensor, name), name in _HAND_OUT, reading))
        for module in _WITH_DLPACK:
            module.to_dlpack = _within(to_dlpack, True, reading)
        yield
    finally:
        for module in _WITH_DLPACK:
            module.to_dlpack = to_dlpack
        for name, method in before.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)


def _within(
    method: Any, hands_out: bool, reading: Callable[[torch.Tensor, bool], AbstractContextManager[None]]
) -> Any:
    @functools.wraps(method)
    def within(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with reading(tensor, hands_out):
            return method(tensor, *args, **kwargs)

    return within
