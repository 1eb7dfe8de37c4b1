"""`evict`: a hard budget for any eager loop, kept by recomputation.

Idea        While the block runs, what its thread allocates through torch lies in one arena of the budget's
            size. What does not fit evicts what an op can make again; an op that reads an evicted
            tensor has it made again first. Autograd's saved tensors share the storages, so they need no hook.
Source      Coop (NeurIPS 2023), DTR (ICLR 2021), DTE (MegEngine); see `policies`.
Guarantee   The thread's allocations never exceed the budget. Values are those of the loop without `evict`:
            every op that runs again reads the bytes, sizes, strides and generator state that it read before.
Complexity  Per op three to seven microseconds; per eviction the pieces of the arena.
Gaps        No lookahead: a budget may fail at which a plan exists. Other threads are not limited. C++ code
            that is no op of torch and reads a tensor that was evicted is refused by torch. While a block
            is open, what `torch.compile` made runs as it is, on all threads.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tightrope.capture._eager import innermost_mode
from tightrope.core import Bytes, TightropeError, format_bytes, parse_bytes
from tightrope.core.collector import collector_paused
from tightrope.core.units import ALIGNMENT, round_up
from tightrope.native.hook.allocator import allocator
from tightrope.native.hook.evicting import EvictionWindow
from tightrope.native.hook.refused import OutOfBudgetError
from tightrope.run.evict.core import EvictionArena, Statistics, options_block
from tightrope.run.evict.policies import COOP, Policy
from tightrope.run.evict.policies import policy as find_policy
from tightrope.run.evict.reads import watched_reads
from tightrope.run.evict.watch import OpWatch, follower_maker, storage_of

_SHOWN = 5
_LEAST_MORE = 1 << 16
"""Bytes that a budget to try has at least beyond one that was refused."""
_MOST_GAPS = 8
"""Gaps that a budget to try counts: more would name budgets far beyond what is needed as a rule."""
before_opening: list[Callable[[], None]] = []
"""Called before a block opens: what holds one that it does not need ends it."""
_NOT_OPEN = "this eviction is not in use: read it inside its with block, or after it for the last figures."


class Eviction:
    """A block whose tensors are evicted and made again; made by `evict`.

    Attributes:
        budget: bytes for all that the block's thread allocates through torch.
        policy: who is evicted.
        num_ops: ops that ran, without views.
        num_recomputed: ops that ran again.
        recomputed_ns: what those took, by the times of `operator_ns`.
        operator_ns: what all ops took in their first runs, each by the least time so far on such sizes.
        num_followed: training steps that followed a plan to their end.
        lost: tensors that an error left without bytes.
        advise: says what to do about a request of so many bytes, with a budget to try.
    """

    def __init__(
        self, budget: Bytes, chosen: Policy, *, most_again: float | None = None, poison: bool = False
    ) -> None:
        self.budget, self.policy = budget, chosen
        self._most_again = most_again
        self.lost = self._most_held = self._most_in_all = 0
        self._size = budget
        self.grows = False  # into what the process frees outside of it: for level E, whose budget has both
        self.advise: Callable[[Bytes], tuple[str, Bytes | None]] = self._next_budget
        self._poison = poison
        self._watch: OpWatch | None = None
        self._last: Statistics | None = None
        self._operator_ns = 0
        self._thread = 0
        self._finding = False
        self._stack = ExitStack()
        self._trusted: list[torch.Tensor] = []

    @property
    def most_held(self) -> Bytes:
        """The most bytes that tensors took at once, had none been evicted."""
        if self._watch is not None and self._last is None:
            return self._watch.window.call("most_held")
        return self._most_held

    @property
    def most_in_all(self) -> Bytes:
        """With bytes held outside of the arena."""
        if self._watch is not None and self._last is None:
            return self._watch.window.call("most_in_all")
        return self._most_in_all

    @property
    def size(self) -> Bytes:
        """Bytes of the arena now."""
        if self._watch is not None and self._last is None:
            return self._size + self._watch.window.call("grown")
        return self._size

    @property
    def num_ops(self) -> int:
        """Ops that ran, without views."""
        return self._watch.num_ops if self._watch else 0

    @property
    def num_recomputed(self) -> int:
        """Ops that ran again."""
        return self._watch.num_recomputed if self._watch else 0

    @property
    def recomputed_ns(self) -> int:
        """What ops that ran again took, by the times of `operator_ns`."""
        return self._watch.recomputed_ns if self._watch else 0

    @property
    def operator_ns(self) -> int:
        """What all ops took in their first runs, each by the least time so far on such sizes."""
        if self._watch is not None and self._last is None:
            return self._watch.arena.base
        return self._operator_ns

    @property
    def num_followed(self) -> int:
        """Training steps that followed a plan to their end, with ``policy="planned"``."""
        return self._watch.num_followed if self._watch else 0

    @property
    def num_held_calls(self) -> int:
        """Records of storages that are kept now, with the calls that make them."""
        return self._watch.num_records if self._watch else 0

    @property
    def is_innermost(self) -> bool:
        """Whether the block is the last that was entered of all that see this thread's ops."""
        return self._watch is not None and innermost_mode() is self._watch

    def end_step(self) -> None:
        """Say that a training step ends, where ``policy="planned"`` and no optimizer of torch says so.

        Raises:
            TightropeError: the block is not in use.
        """
        if self._watch is None or self._last is not None:
            raise TightropeError(_NOT_OPEN)
        self._watch.end_step()

    def _stepped(self, *_: object) -> None:
        if self._watch is not None and self._last is None and threading.get_ident() == self._thread:
            self._watch.end_step()

    def statistics(self) -> Statistics:
        """Read the arena's counters; after the block, as they were at its end.

        Raises:
            TightropeError: the block has not begun.
        """
        if self._watch is not None and self._last is None:
            return self._watch.arena.statistics()
        if self._last is None:
            raise TightropeError(_NOT_OPEN)
        return self._last

    def __enter__(self) -> Self:
        if self._watch is not None:
            raise TightropeError("this eviction was used before: call tightrope.evict again.")
        for end in before_opening:
            end()
        window = self._open()
        handle = window.call("arena")
        try:
            self._watch = OpWatch(window, EvictionArena(self.budget, handle))
        except BaseException:
            window.close()
            raise
        self._watch.on_refusal = self._explain
        if self._most_again is not None:
            window.watched("most_again", self._most_again)
        window.call("soft", int(self.policy.soft_pins))
        if self.grows:
            window.call("let_grow")
        self._thread = threading.get_ident()
        if self.policy.forecasts:
            self._watch.follow(COOP, self._watch.arena.size)
            hook = register_optimizer_step_post_hook(self._stepped)
            self._stack.callback(hook.remove)
        self._stack.enter_context(watched_reads(self._reading))
        self._stack.enter_context(self._watch.seeing())
        return self

    def _open(self) -> EvictionWindow:
        options = options_block(self.budget, self.policy)
        try:
            return EvictionWindow(allocator(), options, poison=self._poison)
        except (
            torch.OutOfMemoryError
        ):  # a model that nobody holds any more may hold the process to its budget
            gc.collect()
            return EvictionWindow(allocator(), options, poison=self._poison)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch = self._watch
        if watch is None:
            raise TightropeError(_NOT_OPEN)
        self._stack.close()
        watch.unfollow()
        self._trusted = []
        watch.window.watched("most_again", -1.0)  # what lives must be brought back, however long that takes
        self._operator_ns, self._size = watch.arena.base, self.size
        self._most_held, self._most_in_all = self.most_held, self.most_in_all
        self._last = watch.arena.statistics()
        held = 0
        with collector_paused():
            alive = [one for resident in (True, False) for one in watch.window.held(resident=resident)]
            much = sum(map(watch.window.size, alive)) > self._size
        if much:
            gc.collect()  # cycles may hold tensors that nobody can reach
        stayed: list[int] = []
        try:
            with collector_paused():
                for storage in watch.window.held(resident=True):
                    held += self._move_out(storage)
                    if watch.window.call("is_inside", storage):
                        watch.arena.pin(storage)
                for storage in watch.window.held(resident=False):
                    held += watch.window.size(storage)
                    if error is not None and held > self._size:
                        held -= self._lose(storage)
                    else:
                        self._bring_back(storage)
        finally:  # whatever an op that ran again raised
            with collector_paused():
                for storage in watch.window.held(resident=False):
                    self._lose(storage)
                stayed = [one for one in watch.window.held(resident=True) if not watch.is_exposed(one)]
            watch.window.call("suspend", 1)
            watch.collect()
            watch.close(stayed)
        if error is None and (held > self._size or self.lost):
            raise self._too_much_lives(held)  # no name here refers to it: its frames hold what lives

    def _bring_back(self, storage: int) -> None:
        """Make an evicted storage again, on the heap where the arena has no room, and move it there."""
        watch = self._watch
        assert watch is not None
        try:
            watch.restore([storage])
        except torch.OutOfMemoryError:
            watch.window.call("suspend", 1)
            try:
                watch.restore([storage])
            except torch.OutOfMemoryError:
                self._lose(storage)
                return
            finally:
                watch.window.call("suspend", 0)
        if watch.window.call("is_inside", storage):
            self._move_out(storage)
        if watch.window.call("is_inside", storage):
            watch.arena.pin(storage)

    def _lose(self, storage: int) -> Bytes:
        watch = self._watch
        assert watch is not None
        if not watch.arena.resident(storage):
            self.lost += 1
            watch.window.call("lose", storage)
        return watch.window.size(storage)

    def _move_out(self, storage: int) -> Bytes:
        watch = self._watch
        assert watch is not None
        if watch.is_exposed(storage):
            return watch.window.size(storage)
        watch.window.move_out(storage)  # where the heap has no room, it stays where it is
        return watch.window.size(storage)

    def _too_much_lives(self, held: Bytes) -> OutOfBudgetError:
        lost = (
            f" {self.lost} tensors could not be brought back and raise when they are read."
            if self.lost
            else ""
        )
        named = self._room_for(held)
        raised = "" if named is None else f", or try budget={named}, which what lives on fits into"
        found = OutOfBudgetError(
            f"tensors of {format_bytes(held)} live on at the end of tightrope.evict, and the budget was "
            f"{format_bytes(self.budget)}.{lost} Delete what the loop no longer needs, as a loss that "
            f"holds its graph, before the block ends{raised}."
        )
        found.budget_to_try = named
        return found

    def _room_for(self, held: Bytes) -> Bytes | None:
        """Bytes that what lives on fits into; None where it does, and something else was short."""
        return round_up(held, ALIGNMENT) if held > self._size else None

    def held(self) -> Bytes:
        """Bytes of tensors of the arena now, evicted ones included."""
        assert self._watch is not None
        window = self._watch.window
        with collector_paused():
            every = [one for resident in (True, False) for one in window.held(resident=resident)]
            return sum(round_up(window.size(one), ALIGNMENT) for one in every)

    def budget_for(self, asked: Bytes) -> Bytes:
        """Compute a budget that allows a request of so many bytes now.

        With that many nothing would have been evicted so far. What cannot move may split them: n storages
        leave n + 1 gaps, and one of the gaps must hold the request.
        """
        named = self.size + max(asked, self.budget // 64, _LEAST_MORE)
        if self._watch is None:
            return named
        named, held = max(named, self.most_held), self.held()
        walls = self._watch.window.walls() if asked else []
        num_gaps = min(1 + len(walls), _MOST_GAPS)
        stay = sum(round_up(size, ALIGNMENT) for _, size, _ in walls)
        return max(named, held + round_up(asked, ALIGNMENT), stay + num_gaps * round_up(asked, ALIGNMENT))

    def _next_budget(self, asked: Bytes) -> tuple[str, Bytes | None]:
        """Name a budget to try."""
        named = self.budget_for(asked)
        why = "what comes after this request was not seen" if asked else "less runs again"
        return (
            f"Try budget={named} next ({format_bytes(named)}): {why}; it may take more. Or make the op "
            "smaller.",
            named,
        )

    def _explain(self, error: torch.OutOfMemoryError, op: str) -> BaseException:
        """Say which op asked, and what must stay, largest first."""
        watch = self._watch
        assert watch is not None
        walls = sorted(watch.window.walls(), key=lambda wall: -wall[1])
        lines = []
        for owner, size, pins in walls[:_SHOWN]:
            maker = watch.maker(owner)
            made = f" of {maker.name}" if maker is not None else ""
            why = "read by the op that runs" if pins else "cannot be made again"
            lines.append(f"{format_bytes(size)}{made} ({why})")
        rest = f", and {len(walls) - _SHOWN} more" if len(walls) > _SHOWN else ""
        stays = f" What must stay: {'; '.join(lines)}{rest}." if lines else ""
        advice, named = self.advise(getattr(error, "asked", 0))
        found = OutOfBudgetError(f"{error} Budget {format_bytes(self.budget)}; op {op}.{stays} {advice}")
        found.budget_to_try = named
        return found

    def trust(self, tensors: list[torch.Tensor]) -> None:
        """Take it that memory of others behind these tensors is not filled again in the block."""
        watch = self._watch
        assert watch is not None
        self._trusted = tensors  # alive, so that no other storage takes their addresses
        for tensor in tensors:
            watch.window.watched("trust", storage_of(tensor)._cdata)

    @contextmanager
    def _reading(self, tensor: torch.Tensor, hands_out: bool) -> Iterator[None]:
        watch = self._watch
        if watch is None or self._finding or threading.get_ident() != self._thread:
            yield
            return
        self._finding = True
        try:
            identity = watch.find(tensor)
        finally:
            self._finding = False
        if identity < 0:
            yield
            return
        watch.bring_back(identity, exposed=hands_out)
        try:
            yield
        finally:
            watch.arena.unpin(identity)


def is_foreign(tensor: torch.Tensor) -> bool:
    """Tell whether the memory of a dense tensor is not torch's, as that of an array that it was made of."""
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return known and not storage_of(tensor).resizable()


def evict(
    budget: str | int,
    *,
    policy: str | Policy = "coop",
    most_again: float | None = None,
    poison: bool = False,
) -> Eviction:
    """Hold an eager loop to a budget: evict tensors and recompute them when they are read.

    Everything that the thread allocates through torch inside the block counts: activations, gradients,
    kernels' workspaces, optimizer state that is made there. What was made before, parameters as a rule, lies
    beside it.

    Args:
        budget: bytes, or text such as ``"200MiB"``.
        policy: ``coop``, ``dtr``, ``dte``, ``lru``, ``size`` or ``planned``, or a `Policy`. ``planned``,
            of tightrope-planners, is ``coop`` until a training step has come twice; that one is planned to
            its end, and followed as often as it comes again. Steps end with an optimizer's step, or at
            `Eviction.end_step`.
        most_again: how many times the ops' own time recomputation may take, its search for room included;
            beyond that the block raises. Ops of less than 50 ms count as 50 ms. By default only what one
            op waits for is limited.
        poison: overwrite freed bytes, for tests.

    Returns:
        A context manager; its figures can be read in the block and after it.

    Raises:
        BudgetSyntaxError: the budget cannot be read.
        TightropeError: there is no such policy, or its plug-in is not installed; ``most_again`` is not
            above 0.
        NativeError: on entry: there is no C++ compiler.
        OutOfBudgetError: in the block, where an op's inputs, results and workspace and what must stay do not
            fit together, or ops run again for too long; at its end, where what lives on is larger than the
            budget.

    Example:
        >>> import torch
        >>> with evict("1MiB") as eviction:  # doctest: +SKIP
        ...     loss = torch.nn.Linear(8, 8)(torch.ones(4, 8)).sum().item()
    """
    chosen = policy if isinstance(policy, Policy) else find_policy(policy)
    if most_again is not None and not most_again > 0:
        raise TightropeError(f"most_again={most_again!r} must be above 0, as in most_again=2.")
    if chosen.forecasts:
        follower_maker()
    return Eviction(parse_bytes(budget), chosen, most_again=most_again, poison=poison)
