"""What 100 % stands for where no graph tells it: the bytes of the first training steps, run as they are.

Idea        Calls run plainly and without a limit until an optimizer has made its step. What was charged at
            most, and what the steps left that was not there at that moment, is what a step needs unplanned.
Guarantee   A step like those seen fits into that many bytes without recomputation.
Gaps        Without an optimizer of torch, the first `_MOST` calls are taken for a step. The budget does not
            hold for these steps, as it is not known before.
"""

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tightrope.core import Bytes
from tightrope.run.accounts import Accounts
from tightrope.run.awaited import Awaited
from tightrope.run.room import CAPTURE_SLACK, RESERVE

_MOST: Final = 8
_OPEN: Final["weakref.WeakSet[MeasuredSteps]"] = weakref.WeakSet()


class MeasuredSteps:
    """The first steps of a model, whose bytes are measured; used from one thread."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts, self._awaited = accounts, Awaited()
        self._start = self._num_calls = self._depth = 0
        self._has_updated = False
        if not _HOOKED:
            _HOOKED.append(register_optimizer_step_post_hook(_updated))
        _OPEN.add(self)

    def run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call."""
        if not self._num_calls:
            with self._accounts.observed():  # peaks start afresh behind the capture that failed
                pass
            self._accounts.take_peak()
            self._start = self._accounts.charged()
        self._num_calls += not self._depth
        self._depth += 1
        try:
            result = call(*args, **kwargs)
        finally:
            self._depth -= 1
        self._awaited.expect(result)
        return result

    @property
    def are_over(self) -> bool:
        """Whether a training step was seen to its end, or a call that records no gradients."""
        if self._depth or not self._awaited.all_came:
            return False
        seen = self._has_updated or self._num_calls >= _MOST
        return bool(self._num_calls) and (seen or not torch.is_grad_enabled())

    def updated(self) -> None:
        """Note the end of an optimizer's step."""
        self._has_updated |= not self._depth and self._awaited.all_came

    def whole(self) -> Bytes:
        """Compute the bytes that such a step takes, the optimizer's state in them from its beginning."""
        peak, stays = self._accounts.take_peak(), self._accounts.charged() - self._start
        return peak + max(stays, 0) + RESERVE + CAPTURE_SLACK


_HOOKED: Final[list[Any]] = []


def _updated(*_: object) -> None:
    for steps in list(_OPEN):
        steps.updated()
