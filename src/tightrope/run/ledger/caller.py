"""What the caller's code takes between the parts of a step, and what becomes of gradients that it gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.core import Bytes
from tightrope.run.ledger.accounts import Accounts, Observation


@dataclass(eq=False)
class CallerBytes:
    """Observes one unit from its first turn to its last.

    Attributes:
        accounts: of the device.
        start: live bytes on the heap at first, and what the unit put there itself since.
        growth: most bytes that the heap held above what it held at first, what the unit itself put
            there aside.
        held: likewise, when a part began.
        dropped: (call, output) of gradients that the caller let go of before the next turn.
    """

    accounts: Accounts
    start: Bytes
    growth: Bytes = 0
    held: Bytes = 0
    dropped: set[tuple[int, int]] = field(default_factory=set)
    _handed: list[tuple[tuple[int, int], Callable[[], bool]]] = field(default_factory=list)

    def enter(self) -> None:
        """Look at what was handed over, when control comes back."""
        self.dropped.update(key for key, gone in self._handed if gone())
        self._handed.clear()

    def ran(self, seen: Observation, own: Bytes) -> None:
        """Note what was seen before and while a part ran, and the bytes that it left on the heap itself."""
        self.growth = max(self.growth, seen.heap_before - self.start)
        self.held = max(self.held, seen.heap - self.start)
        self.start += own

    def grown(self) -> Bytes:
        """Most growth by now."""
        return max(self.accounts.heap() - self.start, self.growth)

    def refused(self) -> Bytes:
        """Growth that a refused allocation would have made; 0 = none was refused."""
        refused = self.accounts.heap_refused()
        return max(refused - self.start, 0) if refused else 0

    def hand_over(self, call: int, gradients: Sequence[Any]) -> None:
        """Watch gradients that the caller gets."""
        self._handed += [
            ((call, position), _torch.watch_storage(gradient))
            for position, gradient in enumerate(gradients)
            if isinstance(gradient, torch.Tensor) and gradient.untyped_storage().nbytes()
        ]
