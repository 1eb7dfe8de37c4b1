"""What Dynamo keeps of a captured graph: it finds the model whose graph it is, and runs it there."""

import math
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tightrope.capture import _torch
from tightrope.capture.announce import GradientGroups
from tightrope.core import InfeasibleError
from tightrope.run.execute.running import Pending
from tightrope.run.session.buckets import Buckets
from tightrope.run.session.calls import Calls
from tightrope.run.session.fused import add_plain


class Owner(Protocol):
    """What belongs to one compiled model.

    Attributes:
        calls: captured graphs and what runs them.
        buckets: which graph serves a call that was captured for many sizes.
        before_run: called with (this, number of the graph) and its arguments right before a forward runs.
    """

    calls: Calls
    buckets: Buckets
    before_run: Callable[[tuple[Any, int], list[Any]], None] | None


class CompiledGraph:
    """One captured graph; see `tightrope.capture.dynamo.Runner`.

    Dynamo remembers it for ever, so everything that holds memory belongs to the model.

    Args:
        owner: the model that it is of.
        number: its own, or where it stands for ``many`` sizes that of its family.
    """

    def __init__(self, owner: "weakref.ref[Owner]", number: int, *, many: bool) -> None:
        self._owner, self._number, self._many, self._failed = owner, number, many, False

    def _served(self, owner: Owner, args: list[Any]) -> int:
        """Find the captured graph for a call that is about to run."""
        if self._failed:  # autograd holds what a failed backward left until the next one
            self._failed = False
            _torch.run_tiny_backward()
        number = owner.buckets.serve(self._number, args) if self._many else self._number
        if owner.before_run is not None:
            owner.before_run((owner, number), args)
        return number

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the ops before the hand-over; return the outputs and then the token."""
        owner = self._owner()
        assert owner is not None
        calls, number = owner.calls, self._number
        if self._failed or self._many or owner.before_run is not None:
            number = self._served(owner, args)
        try:
            return calls.forward(number, args)
        except InfeasibleError as error:  # before anything ran
            plain = add_plain(calls, number, args) if args else None
            if plain is None:
                raise
            rewritten = error.with_traceback(None)  # whose frames hold the inputs
        self._number = plain
        try:
            return calls.forward(plain, args)
        except InfeasibleError as error:  # the form is tried first in the next run, too
            smallest = rewritten.smallest_found or math.inf
            raise rewritten if smallest < (error.smallest_found or math.inf) else error from None

    def backward(self, args: list[Any], by_group: GradientGroups | None = None) -> list[Any]:
        """Run the rest; ``args`` is the token followed by the tangents."""
        pending: Pending = args[0].pending
        try:
            return pending.calls.backward(args, by_group)  # type: ignore[no-any-return]
        except BaseException:
            pending.failed()
            self._failed = True
            raise

    def inference(self, args: list[Any]) -> list[Any]:
        """Run a program that has no backward."""
        owner = self._owner()
        assert owner is not None
        return owner.calls.inference(self._served(owner, args), args)
