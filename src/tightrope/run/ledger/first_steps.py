"""What 100 % stands for where no graph tells it: the bytes of the first training steps, run as they are.

Idea        Calls run plainly and without a limit until an optimizer has made its step. What was charged at
            most, and what the step left that was not there at that moment, is what it needs unplanned. That
            goes on until a step needs no more than those before: layers may be dropped in some.
Guarantee   A step like those seen fits into that many bytes without recomputation.
Gaps        Without an optimizer of torch, the first `_MOST` calls are taken for all steps. The budget does
            not hold for these steps, as it is not known before, and no budget of another model does.
"""

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tightrope.core import Bytes
from tightrope.run.base.pending_backwards import Awaited
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.room import CAPTURE_SLACK, GAPS, RESERVE

_MOST: Final = 8
"""Steps that are measured where each needs more, and calls where no optimizer says what a step is."""
_SAME: Final = 1.02
"""A step that takes no more than so many times what those before took is as large as they are."""
_OPEN: Final["weakref.WeakSet[MeasuredSteps]"] = weakref.WeakSet()


class MeasuredSteps:
    """The first steps of a model, whose bytes are measured; used from one thread."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts, self._awaited = accounts, Awaited()
        self._start = self._num_calls = self._depth = self._num_steps = 0
        self._whole: Bytes = 0
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

    def are_over(self) -> bool:
        """Tell whether enough was seen: steps to their end, or a call that records no gradients."""
        if self._depth or not self._num_calls or not self._awaited.all_came:
            return False
        if not self._has_updated:
            return self._num_calls >= _MOST or not torch.is_grad_enabled()
        before, self._num_steps = self._whole, self._num_steps + 1
        grown = self.whole() > before * _SAME
        self._num_calls, self._has_updated = 0, False
        return not grown or self._num_steps == _MOST

    def updated(self) -> None:
        """Note the end of an optimizer's step."""
        self._has_updated |= not self._depth and self._awaited.all_came

    def whole(self) -> Bytes:
        """Compute the bytes of the largest step so far, the optimizer's state in them all along."""
        peak, stays = self._accounts.take_peak(), self._accounts.charged() - self._start
        need = peak + max(stays, 0)
        gaps = (peak - self._start) // GAPS
        self._whole = max(self._whole, need + gaps + RESERVE + CAPTURE_SLACK)
        return self._whole


_HOOKED: Final[list[Any]] = []


def _updated(*_: object) -> None:
    for steps in list(_OPEN):
        steps.updated()
