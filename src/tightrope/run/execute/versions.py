"""Whether tensors changed since a forward read them."""

from collections.abc import Sequence
from typing import Any

import torch

from tightrope.capture._guards import overlapping
from tightrope.run.base.sharded import shard_of


def version_of(tensor: Any) -> tuple[int, int]:
    """The version of a tensor, which rises with every change in place, and where its memory is.

    The memory of a gathered parameter comes and goes: instead, the version of the shard that it is made of.
    """
    if not isinstance(tensor, torch.Tensor):
        return 0, 0
    shard = shard_of(tensor)
    return int(tensor._version), tensor.data_ptr() if shard is None else int(shard._version)


def lies_apart(value: Any, written: Sequence[torch.Tensor]) -> bool:
    """Tell whether a tensor shares its memory with tensors that were written, and overlaps none of them."""
    if not isinstance(value, torch.Tensor):
        return False
    memory = value.untyped_storage().data_ptr()
    same = [one for one in written if one.untyped_storage().data_ptr() == memory]
    return bool(same) and not any(overlapping([value, one]) for one in same)
