"""Level E of `compile`: training steps of a model that no plan serves, held to the budget by eviction.

Idea        The outermost call of the model opens an eviction block, which stays open through the loss, the
            backward pass and the update: until an optimizer of torch has made its step, or the next call,
            where no backward pass is outstanding then. The arena gets what the budget leaves after what is
            held. At the end of a block it gives back every page without a tensor, and what lives moves out.
Source      As `tightrope.run.evict`
Guarantee   Bytes charged never exceed the budget: an arena is charged as a whole, a closed one by its pages.
            Values are those of the loop without it.
Complexity  Per op that of `evict`; per block a mapping of the arena, and a copy of what outlives it.
Gaps        Whatever the loop does between two calls, data that it makes included, is done in the block.
            Models share the block that is open. A step that begins inside of a dispatch mode of the caller
            is limited and not evicted, with a warning. One thread.
"""

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tightrope.capture._eager import innermost_mode, tensors_in
from tightrope.capture._guards import is_transformed
from tightrope.core import Bytes, TightropeError
from tightrope.core.ledger import Ledger, Row
from tightrope.run.base.pending_backwards import Awaited, drain_failed
from tightrope.run.base.sharded import divided
from tightrope.run.evict.context import Eviction, before_opening, evict, is_foreign
from tightrope.run.evict.watch import OpWatch
from tightrope.run.execute.untested import cannot_evict
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.arenas import trim_all
from tightrope.run.ledger.headroom import CallerSoFar
from tightrope.run.ledger.hidden import HiddenBytes
from tightrope.run.ledger.refusal import if_dropping
from tightrope.run.ledger.room import GAPS, Room

_LEAST: Final[Bytes] = 65536
"""A smaller arena holds no step."""
_HIGHER_ORDER: Final = (
    "level E: an op that takes functions, such as torch.cond, is not one op that could run again. Use a "
    "branch of Python."
)
_ROOMY: Final = 4
"""One part in so many is left for a loss outside of the model that is larger than was guessed."""
_AGAIN: Final = 4
"""One part in so many of what a step keeps is likely to be computed again in good time."""
_MOST_AGAIN: Final = 30.0
"""A step that would run ops again for so many times its own time is refused."""


class EvictedSteps:
    """Blocks of eviction, one per training step of a model; used from one thread.

    Attributes:
        budget: of the process.
        given: the percentage that the user gave, and what it is of; nothing where bytes were given.
        unplanned: the budget at which every step so far could have kept all of its tensors.
        seen: called at the end of a block.
        persistent: bytes held beside the arena when the last block began.
        arena: bytes of its arena.
        observed: most bytes charged in any block that ended.
        num_blocks: that were opened.
        last: the block that is open, or ended last.
    """

    def __init__(
        self,
        budget: Bytes,
        parameters: Sequence[torch.Tensor],
        accounts: Accounts,
        hidden: HiddenBytes,
        given: tuple[str, Bytes] = ("", 0),
        seen: Callable[[], None] = lambda: None,
    ) -> None:
        self.budget, self._accounts, self._kernels, self.given = budget, accounts, hidden, given
        self.persistent = self.arena = self.observed = self.num_blocks = 0
        self._watching = ExitStack()
        self._seen = seen
        self.last: Eviction | None = None
        self._trained = [weakref.ref(one) for one in parameters if one.requires_grad]
        self._block: Eviction | None = None
        self._own = [weakref.ref(one) for one in parameters]
        self._thread = threading.current_thread()
        self._depth = self._other_inputs = self._held_then = 0
        self.unplanned = given[1]
        self._warned = self._has_failed = False
        self._awaited = Awaited()
        if end_if_done not in before_opening:
            before_opening.append(end_if_done)
            register_optimizer_step_post_hook(end_if_done)

    def run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call in the block that is open, or in a new one.

        Raises:
            InfeasibleError: what is held leaves no room for an arena.
            OutOfBudgetError: an op and what must stay do not fit together.
            TightropeError: another thread has the block.
        """
        serving = next(iter(_SERVING), None)
        if serving is not None and not serving._thread.is_alive():
            serving.close()  # nobody is left to go on with it
            serving = None
        if serving is not None and serving._thread is not threading.current_thread():
            raise TightropeError(
                "level E: a training step of another thread is under way; call the model from that thread."
            )
        if serving is not None and serving._may_end:
            serving.close()
            if serving._block is None:
                serving = None
        if serving is None and (mode := innermost_mode()) is not None:
            if not isinstance(mode, OpWatch):
                self._warn(f"that begins inside of {type(mode).__name__}")
            return call(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        if serving is None and any(map(is_transformed, given)):
            self._warn("that begins inside of a transform of torch.func")
            return call(*args, **kwargs)
        if serving is None:
            self._other_inputs = sum(_size(one) for one in given) if threading.active_count() > 1 else 0
            self._begin([one for one in given if is_foreign(one)])
            serving = self
        return serving._call(call, args, kwargs)

    def close(self, error: BaseException | None = None) -> None:
        """End the block, if one is open here: what lives moves to ordinary memory.

        Raises:
            OutOfBudgetError: more lives than the arena holds.
        """
        block = self._block
        if block is None:
            return
        if self._thread.is_alive() and not (
            self._thread is threading.current_thread() and block.is_innermost
        ):
            return
        self._block = None
        self._awaited.clear()
        self._depth = 0
        _SERVING.discard(self)
        self._kernels.watched()
        if (found := self._whole(block)) > self.unplanned:
            self.unplanned, self._held_then = found, self.persistent
        try:
            block.__exit__(None if error is None else type(error), error, None)
        finally:
            self._watching.close()
        self._seen()

    def leave(self) -> None:
        """End the block when its model goes: nobody is left to be told what did not fit."""
        with suppress(TightropeError, torch.OutOfMemoryError):
            self.close()

    @property
    def _may_end(self) -> bool:
        """Whether nothing that the block serves is under way."""
        return not self._depth and self._awaited.all_came

    def _call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._depth += 1
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            self._depth -= 1
            if not self._depth:
                self.close(error)
            if isinstance(error, NotImplementedError) and "HigherOrderOperator" in str(error):
                raise TightropeError(_HIGHER_ORDER) from error
            raise
        self._depth -= 1
        self._awaited.expect(result)
        if self._may_end and not torch.is_grad_enabled():
            self.close()
        return result

    def _warn(self, step: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"tightrope: level E evicts nothing in a step {step}: the limit alone holds.", stacklevel=6
            )

    def _begin(self, foreign: list[torch.Tensor]) -> None:
        """Open a block; ``foreign`` inputs are not filled again in it."""
        accounts = self._accounts
        accounts.open_step(None)
        if self._has_failed:
            self._has_failed = False
            drain_failed()
        trim_all()
        self.persistent = accounts.charged()
        self.arena = self._arena_at(self.budget)
        if self.arena < _LEAST:
            named = accounts.to_try(self.budget)[1]
            ledger = replace(self._ledger(self.budget), least=named.keeping)
            known = self.unplanned - ledger.needed(0)
            guess = max(4 * self._gradients(), 1 << 20, known - known // _AGAIN) + _LEAST
            if _LEAST <= known < guess:
                more = Row("the step", known, "measured", "earlier steps")
            else:
                more = Row("the step", guess, "guess")
            raise ledger.explain(more, bound=self.persistent, notes=["More may be needed."])
        block = evict(self.arena, most_again=_MOST_AGAIN)
        block.advise, block.grows = self._advise, True
        block.__enter__()
        self._watching.enter_context(self._watched())
        self._kernels.watch()
        self._block = self.last = block
        self.num_blocks += 1
        own = [tensor for ref in self._own if (tensor := ref()) is not None and is_foreign(tensor)]
        block.trust([*foreign, *own])
        self._thread = threading.current_thread()
        _SERVING.add(self)
        this = weakref.ref(self)
        accounts.open_step(lambda: one.leave() if (one := this()) is not None else None)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """See what is charged while a block is open."""
        with self._accounts.observed() as found:
            yield
        self.observed = max(self.observed, found.charged)

    def _advise(self, asked: Bytes) -> tuple[str, Bytes | None]:
        """Name a budget: in a step under way one by the shapes, else one that allows a request."""
        self._has_failed = True
        ledger, (why, shapes) = self._ledger(self.budget), self._accounts.to_try(self.budget)
        said, last = ledger.written, self.last
        assert last is not None
        allows = self.budget - last.size + last.budget_for(asked)
        if shapes.keeping >= allows and not self._may_end:
            notes = if_dropping(ledger, shapes.dropping, shapes.keeping)
            return " ".join([f"Try {said(shapes.keeping)}: {why}.", *notes]), shapes.keeping
        more = CallerSoFar(0, 0, 0).after(asked) - asked if shapes.keeping and not self._may_end else 0
        if more and not wants_eviction(self._accounts, allows + more, ""):  # nothing is dropped at level 0
            allows = max(allows, self._accounts.likely.keeping + asked)
        named = max(allows, self.unplanned) + more
        if self.unplanned and (whole := self._roomy(last, asked)) > self.budget:
            named = min(named, whole)  # else what stays splits the arena
        if self.budget < self.given[1]:  # the whole step was rehearsed, its loop included
            named = min(named, max(self.given[1], allows))
        why = "it allows this request; what comes after it was not seen yet" if asked else "less runs again"
        if more:
            why = f"it allows this request, and {more} bytes of what comes after it, which was not seen yet"
        return f"Try {said(named)} next: {why}.", named

    def _roomy(self, block: Eviction, asked: Bytes) -> Bytes:
        """Compute a budget in which the step under way keeps all so far, and in which earlier steps did."""
        now = self._accounts.charged() - block.size + block.held() + asked
        # the first step neither kept gradients nor began with an optimizer's state
        grown = max(self.persistent - self._held_then, 0) if self._held_then else 0
        whole = self.unplanned + grown
        if max(self._whole(block), self._spare + now) > whole:
            whole = self._whole(block) + asked
        return whole if whole == self.given[1] else whole + whole // GAPS

    def _ledger(self, budget: Bytes) -> Ledger:
        asked, whole = self.given
        room = Room(budget, self.persistent, hidden=self._accounts.hidden, asked=asked, whole=whole).ledger()
        return room.plus(Row("inputs that another thread makes", self._other_inputs, "guess"))

    @property
    def _spare(self) -> Bytes:
        """Bytes of the budget that neither the arena nor anything else got when the last block began."""
        return self.budget - self.arena - self.persistent

    def _whole(self, block: Eviction) -> Bytes:
        """Bytes of the budget that would have kept all tensors of a block."""
        return self._spare + self._accounts.older + block.most_in_all

    def _arena_at(self, budget: Bytes) -> Bytes:
        return self._ledger(budget).room() // 64 * 64

    def _gradients(self) -> Bytes:
        """Bytes of gradients that are not there yet."""
        alive = [one for ref in self._trained if (one := ref()) is not None]
        return sum(one.nbytes for one in alive if one.grad is None)


def end_if_done(*_: object) -> None:
    """End the open block, if its thread is this one and nothing that it serves is under way."""
    for serving in list(_SERVING):
        if serving._may_end:
            serving.close()


def block_is_open() -> bool:
    """Tell whether some model at level E has an open block."""
    return bool(_SERVING)


_SERVING: Final["weakref.WeakSet[EvictedSteps]"] = weakref.WeakSet()
"""Who has an open block: one at most, as a process has one eviction at a time."""


def _size(tensor: torch.Tensor) -> Bytes:
    """Bytes of a tensor, for a guess: a sparse one counts as nothing."""
    return tensor.numel() * tensor.element_size() if tensor.layout is torch.strided else 0


def wants_eviction(accounts: Accounts, budget: Bytes, fallback: str, *, by_values: bool = False) -> bool:
    """Tell whether a model that is not planned is to run at level E, and not at level 0.

    Where values decide what a step does, what level 0 did not record lies outside the arena.
    """
    enough = accounts.enough.keeping
    roomy = enough + (enough if by_values else enough // _ROOMY)
    return fallback == "evict" or (fallback != "replay" and not 0 < roomy <= budget)


def against_eviction(reference: "weakref.ref[torch.nn.Module]", accounts: Accounts) -> str:
    """Say why a model cannot run at level E; the empty string: it can."""
    model, against = reference(), ""
    assert model is not None
    if accounts.device.type != "cpu":
        against = f"it is on {accounts.device}"
    elif accounts.allocator is None:
        against = "no C++ compiler is installed"
    elif broken := cannot_evict():
        against = broken
    elif divided(model):
        against = "its parameters are divided among processes"
    return against and f"It cannot run at level E: {against}."
