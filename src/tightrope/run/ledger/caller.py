"""What the caller's code takes between the parts of a step, and what becomes of gradients that it gets."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.core import Bytes
from tightrope.run.ledger.accounts import Accounts, Observation


class CallerBytes:
    """Observes one unit from its first turn to its last.

    Args:
        accounts: of the device.
        start: live bytes on the heap at first.

    Attributes:
        growth: most bytes that the heap held above what it held at first, what the unit itself put
            there aside.
        held: likewise, when a part began.
        dropped: (call, output) of gradients that the caller let go of before the next turn.
    """

    def __init__(self, accounts: Accounts, start: Bytes) -> None:
        self._accounts = accounts
        self._start = start
        self._own: Bytes = 0
        self._handed: list[tuple[tuple[int, int], Callable[[], bool]]] = []
        self.growth: Bytes = 0
        self.held: Bytes = 0
        self.dropped: set[tuple[int, int]] = set()

    def enter(self) -> None:
        """Look at what was handed over, when control comes back."""
        self.dropped.update(key for key, gone in self._handed if gone())
        self._handed.clear()

    def ran(self, seen: Observation, own: Bytes, *, first: bool) -> None:
        """Note what was seen before and while a part ran, and the bytes that it left on the heap itself."""
        if not first:
            self.growth = max(self.growth, seen.heap_before - self._start - self._own)
            self.held = max(self.held, seen.heap - self._start - self._own)
        self._own += own

    def grown(self) -> Bytes:
        """Most growth by now."""
        return max(self._accounts.heap() - self._start - self._own, self.growth)

    def refused(self) -> Bytes:
        """Growth that a refused allocation would have made; 0 = none was refused."""
        refused = self._accounts.heap_refused()
        return max(refused - self._start - self._own, 0) if refused else 0

    def hand_over(self, call: int, gradients: Sequence[Any]) -> None:
        """Watch gradients that the caller gets."""
        self._handed += [
            ((call, position), _torch.watch_storage(gradient))
            for position, gradient in enumerate(gradients)
            if isinstance(gradient, torch.Tensor) and gradient.untyped_storage().nbytes()
        ]
