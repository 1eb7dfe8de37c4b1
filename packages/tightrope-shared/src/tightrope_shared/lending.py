"""Tensors that are lent to threads of others, such as those of a process group.

Idea        A backend's thread holds what it was given a moment longer than it works on it. The caller goes
            on, and on a busy machine those bytes count twice. So the thread gets tensors of their own over
            the same memory, and the caller waits until these are gone.
Guarantee   After `Lent.back` returns, nobody else holds the memory, or `PATIENCE` has passed.
Gaps        What a backend keeps for good is waited for each time. Memory of other devices is not waited for:
            their backends hold it until a stream has passed.
"""

import threading
import weakref
from typing import Final

import torch

PATIENCE: Final = 1.0
"""Seconds; what is held for longer is charged for longer."""


class Lent:
    """Tensors over the same memory as some others, for somebody else.

    Args:
        tensors: any; they get their memory now.

    Attributes:
        tensors: to give away. Drop every reference to them before `back`.

    Example:
        >>> given = Lent(torch.ones(2))
        >>> [one.tolist() for one in given.take()]
        [[1.0, 1.0]]
        >>> given.back()
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = [one.detach() for one in tensors]
        self._gone: list[threading.Event] = []
        for one in self.tensors:
            one.data_ptr()  # eviction leaves bytes in memory whose address was handed out
            if one.device.type == "cpu":
                self._gone.append(threading.Event())
                weakref.finalize(one, self._gone[-1].set)

    def take(self) -> list[torch.Tensor]:
        """Hand the tensors over; they are not kept here."""
        taken, self.tensors = self.tensors, []
        return taken

    def back(self) -> None:
        """Wait until nobody holds them."""
        for gone in self._gone:
            gone.wait(PATIENCE)
