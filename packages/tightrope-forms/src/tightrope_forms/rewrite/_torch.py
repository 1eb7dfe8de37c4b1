"""The one private name of torch that is needed: tensors without numbers that have a device."""

from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode


def fakes() -> Any:
    """Make a mode in which tensors have shapes and devices, and no numbers."""
    return FakeTensorMode()
