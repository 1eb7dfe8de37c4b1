"""The private names of torch: tensors without numbers that have a device, and what is inside of values."""

from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves as tree_leaves


def fakes() -> Any:
    """Make a mode in which tensors have shapes and devices, and no numbers."""
    return FakeTensorMode()
