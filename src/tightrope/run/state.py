"""What a call of a model begins from besides its inputs: buffers, and the generators of random numbers."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


class RandomStates(NamedTuple):
    """States of all generators that a forward may draw from."""

    torch: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    @staticmethod
    def now() -> "RandomStates":
        """Copy the present states."""
        return RandomStates(
            torch.default_generator.get_state(), np.random.get_state(legacy=False), random.getstate()
        )

    def restore(self) -> None:
        """Put the generators back."""
        torch.default_generator.set_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def differing(self, other: "RandomStates") -> list[str]:
        """Name the generators whose states differ."""
        same = {
            "torch": torch.equal(self.torch, other.torch),
            "numpy": repr(self.numpy) == repr(other.numpy)
            and np.array_equal(self.numpy["state"]["key"], other.numpy["state"]["key"]),
            "python": self.python == other.python,
        }
        return [name for name, equal in same.items() if not equal]


def state_of(model: torch.nn.Module) -> Callable[[], None]:
    """Remember the buffers and the random states; return what puts them back."""
    states = RandomStates.now()
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}

    def restore() -> None:
        states.restore()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])

    return restore
