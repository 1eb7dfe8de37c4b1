"""Calls of a compiled model that run as it is: to see how they fail, and where torch captures nothing."""

import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import torch

from tightrope.capture._eager import innermost_mode, mode_in_the_way, said_of
from tightrope.run.base.state import state_of
from tightrope.run.evict.level_e import block_is_open, end_if_done
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.unit import Settings


class Limited(Protocol):
    """What holds a process to a budget.

    Attributes:
        name: what refusals of memory call it.
        settings: with the budget.
        accounts: of the device.
    """

    name: str
    settings: Settings
    accounts: Accounts

    def refused(self) -> None:
        """Lift the budget of a model of which no step ever fitted."""


_TOLD: Final["weakref.WeakSet[Limited]"] = weakref.WeakSet()


def mode_left() -> Any:
    """End a block of level E in which nothing is under way; return a mode that is still in the way."""
    if innermost_mode() is None:  # a block is one
        return None
    end_if_done()
    return mode_in_the_way()


def limited_alone(mode: Any, compiled: Limited, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a model as it is, within the budget, inside of a mode that keeps torch from capturing.

    It is said once. A budget in percent is held to from the first planned call on.
    """
    if compiled not in _TOLD:
        _TOLD.add(compiled)
        why = "level E (a call in the open block of another model)" if block_is_open() else said_of(mode)
        warnings.warn(f"tightrope: {why}: it runs without a plan, within the limit.", stacklevel=4)
    if isinstance(compiled.settings.budget, int):
        compiled.accounts.hold_if_possible(compiled, compiled.settings.budget, 0, name=compiled.name)
    return plain(*args, **kwargs)


def try_plain(
    model: "weakref.ref[torch.nn.Module]",
    compiled: Limited,
    plain: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Call a model as it is, within the budget: running out says nothing about the call.

    Buffers and random states are put back, unless the call fails: then they are as it left them.
    """
    owner, budget = model(), compiled.settings.budget
    assert owner is not None
    if isinstance(budget, int) and not compiled.accounts.hold_if_possible(compiled, budget, RESERVE):
        return  # it cannot run, and is refused when the first graph is planned
    try:
        with torch.no_grad():
            restore = state_of(owner, args, kwargs)
            with suppress(torch.OutOfMemoryError):
                plain(*args, **kwargs)
            restore()
    except BaseException:
        compiled.refused()
        raise
