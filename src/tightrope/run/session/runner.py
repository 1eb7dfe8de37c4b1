"""What Dynamo keeps of a captured graph: it finds the model whose graph it is, and runs it there."""

import math
import weakref
from typing import Any, Protocol

from tightrope.capture import _torch
from tightrope.capture.announce import GradientGroups
from tightrope.core import InfeasibleError
from tightrope.run.execute.running import Pending
from tightrope.run.session.calls import Calls
from tightrope.run.session.fused import add_plain


class Owner(Protocol):
    """What belongs to one compiled model."""

    def served(self, number: int, args: list[Any], *, many: bool) -> tuple[Calls, int]:
        """Find the captured graph for a call of one, or of ``many`` sizes, that is about to run."""


class CompiledGraph:
    """One captured graph; see `tightrope.capture.dynamo.Runner`.

    Dynamo remembers it for ever, so everything that holds memory belongs to the model.

    Args:
        owner: the model that it is of.
        number: its own, or where it stands for ``many`` sizes that of its family.
    """

    def __init__(self, owner: "weakref.ref[Any]", number: int, *, many: bool) -> None:
        self._owner, self._number, self._many, self._failed = owner, number, many, False

    def _asked(self, args: list[Any]) -> tuple[Calls, int]:
        if self._failed:  # autograd holds what a failed backward left until the next one
            self._failed = False
            _torch.run_tiny_backward()
        owner: Owner | None = self._owner()
        assert owner is not None
        return owner.served(self._number, args, many=self._many)

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the ops before the hand-over; return the outputs and then the token."""
        calls, number = self._asked(args)
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
        calls, number = self._asked(args)
        return calls.inference(number, args)
