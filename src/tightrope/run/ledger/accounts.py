"""Who holds how many bytes: the process-wide side of the budget.

The budget covers every byte on the device, and the allocator counts all it has served. Two kinds of
bytes it does not see, and they are subtracted from what it may serve: tensors older than the hook, which
are looked for (`tightrope.run.ledger.uncounted`), and what kernels take from the C library while they
run, which is measured with their prices:

    limit = budget - bytes of tensors older than the hook - most hidden bytes of a kernel

This is the only place that sets the allocator's limit. Between steps the limit stays on: loss,
optimizer and user code live under it too. Inside a step with a limit of its own (level 0), that one
holds.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

import torch

from tightrope.core import Bytes, format_bytes
from tightrope.core.cache import warn_once
from tightrope.native import compiler
from tightrope.native.hook.allocator import Allocator, MemoryStats, allocator, cuda_allocator
from tightrope.native.hook.refused import OutOfBudgetError
from tightrope.native.interface import missing
from tightrope.price.device import CPU
from tightrope.price.profiler import changes_of, cpu_profile, start_profile
from tightrope.run.ledger.arenas import reclaimable, trim_all
from tightrope.run.ledger.headroom import ByLoop, CallerSoFar
from tightrope.run.ledger.uncounted import UncountedTensors, uncounted_bytes

_MADE: "Final[dict[torch.device, Accounts]]" = {}
_UNLIMITED: Final[Bytes] = 2**60
UNKNOWN: Final[Bytes] = 2**61
"""A budget that is not known yet: while one is held, the process has no limit."""
_SLACK: Final[Bytes] = 48 * 2**20
"""Two segments of 20 MiB in which blocks of 1 to 10 MiB lie, and four of 2 MiB for smaller ones."""
_LEAST_MORE: Final[Bytes] = 65536
"""The least that a budget is raised by after a request was refused."""


def _known(budget: Bytes) -> Bytes:
    return 0 if budget == UNKNOWN else budget


@dataclass
class Observation:
    """What was observed while a part of a step ran; all zero where nobody looked.

    Attributes:
        before: largest number of bytes charged since the observation before this one.
        heap_before: largest number of live bytes on the heap likewise.
        charged: largest number of bytes charged in this one.
        above: largest number of live bytes above those at its start.
        left: live bytes at its end above those at its start.
        heap: live bytes on the heap at its start.
        heap_left: live bytes on the heap at its end.
    """

    before: Bytes = 0
    heap_before: Bytes = 0
    charged: Bytes = 0
    above: Bytes = 0
    left: Bytes = 0
    heap: Bytes = 0
    heap_left: Bytes = 0


class Accounts:
    """Bytes and limits of one process; get it from `accounts`.

    Attributes:
        device: whose bytes these are.
        allocator: the hook, or None when it could not be built.
        marked: bytes charged when `mark` was called last.
        turn: held while planned code runs: the allocator serves one plan at a time.
        watchers: who does not know yet what kernels take in code without a graph: until then, idle arenas
            give their pages back before such code runs.
        num_limits: times that the limit, or what it is made of, was set.
        note: why there is no hook, in one sentence, or the empty string.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.allocator, self.note = _hook(device)
        self.marked: Bytes = 0
        self.turn = threading.RLock()
        self.watchers: weakref.WeakSet[object] = weakref.WeakSet()
        self._open_step: Callable[[], None] | None = None
        self._peak: Bytes = 0
        self._less = ""
        self._between = False
        self._thread = 0
        self._own: Bytes | None = None
        self._relief: Callable[[], bool] = lambda: False
        self._step: Callable[[], CallerSoFar | None] = lambda: None
        if self.allocator is not None:  # only its requests are refused
            OutOfBudgetError.advise = partial(_advise)  # no method of the class
        self._budgets: weakref.WeakKeyDictionary[object, Bytes] = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self._hidden: weakref.WeakKeyDictionary[object, Bytes] = weakref.WeakKeyDictionary()
        self._enough: weakref.WeakKeyDictionary[object, ByLoop] = weakref.WeakKeyDictionary()
        self._likely: weakref.WeakKeyDictionary[object, ByLoop] = weakref.WeakKeyDictionary()
        hook = self.allocator
        self._older = UncountedTensors(hook.owns if hook is not None else lambda address: True)
        self._applied: Bytes = 0
        self._late = False
        self.num_limits = 0
        self.search()

    def hold(self, owner: object, budget: Bytes, *, name: str = "") -> None:
        """Hold the process to ``budget`` for as long as ``owner`` lives; the largest of several counts.

        ``name`` is what refusals call the owner.
        """
        self._names[owner] = name or "a model"
        if self._budgets.get(owner) == budget:
            return
        if owner not in self._budgets:
            weakref.finalize(owner, self._apply)
        self._budgets[owner] = budget
        self._apply()

    def hold_if_possible(self, owner: object, budget: Bytes, spare: Bytes, *, name: str = "") -> bool:
        """Hold the process to ``budget`` unless less than ``spare`` is left of it already; tell whether."""
        possible = budget >= self.charged() + spare
        if possible:
            self.hold(owner, budget, name=name)
        return possible

    def release(self, owner: object) -> None:
        """Lift the budget of ``owner``."""
        if self._budgets.pop(owner, None) is not None:
            self._apply()

    def budget_of(self, owner: object) -> Bytes:
        """Look up what ``owner`` holds the process to; 0 = nothing yet."""
        return _known(self._budgets.get(owner, 0))

    def hold_back(self, owner: object, hidden: Bytes, *, later: bool = False) -> None:
        """Keep the most bytes that a kernel takes behind the allocator free while ``owner`` lives.

        Kernels run one after another, so the largest amount counts. ``later`` = the limit stays until
        `catch_up`, so that what is refused by then is refused with these bytes in the ledger.
        """
        if hidden <= self._hidden.get(owner, 0):
            return
        if owner not in self._hidden:
            weakref.finalize(owner, self._apply)
        self._hidden[owner] = hidden
        self._late = self._late or later
        if not later:
            self._apply()

    def catch_up(self) -> None:
        """Apply what was held back for later."""
        if self._late:
            self._apply()

    @property
    def slack(self) -> Bytes:
        """Bytes to leave for how torch's allocator of a GPU divides what it reserves; 0 on a CPU."""
        return _SLACK if self.device.type == "cuda" else 0

    @property
    def hidden(self) -> Bytes:
        """Bytes held back for what kernels take behind the allocator."""
        return max(self._hidden.values(), default=0)

    def note_enough(self, owner: object, budgets: ByLoop) -> None:
        """Note budgets that are enough for ``owner``: ones that a refusal may name while that lives."""
        self._enough[owner] = budgets

    def note_likely(self, owner: object, budgets: ByLoop) -> None:
        """Note about what a step of ``owner`` takes without a plan."""
        self._likely[owner] = budgets.or_more(self._likely.get(owner, ByLoop()))

    @property
    def enough(self) -> ByLoop:
        """Budgets that are enough, by the shapes of what has run; 0 = none is known."""
        return reduce(ByLoop.or_more, self._enough.values(), ByLoop())

    @property
    def likely(self) -> ByLoop:
        """About what a step takes without a plan, by the shapes; 0 = it is not known."""
        return reduce(ByLoop.or_more, self._likely.values(), ByLoop())

    def to_try(self, more_than: Bytes) -> tuple[str, ByLoop]:
        """Name budgets of more than so many bytes by the shapes of what has run; 0 = none is known."""
        why, found = "a step takes about that without a plan, by the shapes", self.likely
        if found.keeping <= more_than:
            why, found = "by the shapes it is enough, and less may be", self.enough
        if found.keeping <= more_than:
            return why, ByLoop()
        return why, found if found.dropping > more_than else ByLoop(found.keeping, found.keeping)

    @property
    def budget(self) -> Bytes:
        """What the process is held to: the largest budget alive; 0 = there is none, or it is not known."""
        return _known(max(self._budgets.values(), default=0))

    @contextmanager
    def limited(self, limit: Bytes) -> Iterator[None]:
        """Hold the allocator to ``limit`` counted bytes inside a ``with`` block, whatever the budgets say."""
        before, self._own = self._own, limit
        self._apply()
        try:
            yield
        finally:
            self._own = before
            self._apply()

    def unlimited(self) -> AbstractContextManager[None]:
        """Let what runs inside a ``with`` block have what it asks for."""
        return self.limited(_UNLIMITED)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run something right after an observation that is neither limited nor observed."""
        with self.unlimited():
            yield
        if self.allocator is not None:
            self.allocator.reset_peaks()

    def _apply(self) -> None:
        self.num_limits += 1
        self._late = False
        if self.allocator is None:
            return
        if self._own is not None:
            self.allocator.limit = self._own
            return
        budget = self.budget or None
        older = self._applied = self.older
        self.allocator.limit = None if budget is None else max(budget - older - self.hidden, 0)
        less = []
        if older:
            less.append(f"{older} bytes of tensors made before tightrope began to count")
        if self.hidden:
            less.append(f"{self.hidden} bytes that kernels take beside torch's allocator")
        self._less = ""
        if budget is not None:
            owners = [one for one, size in self._budgets.items() if size == budget]
            whose = self._names.get(owners[0], "a model") if owners else "a model"
            beside = f" less {' and '.join(less)}" * bool(less)
            self._less = f"The limit is the budget of {budget}{beside}, for as long as {whose} lives."
        self.allocator.explain(self._less)

    def watch_caller(self, relief: Callable[[], bool], step: Callable[[], CallerSoFar | None]) -> None:
        """Let ``relief`` make room before code of the calling thread, outside of plans, is refused memory.

        ``step`` tells of the one under way; None = there is none. A refusal says what the forward left,
        until `leave_caller`.
        """
        self._between = True
        if self.allocator is not None and self._thread != threading.get_ident():
            self._relief, self._step, self._thread = relief, step, threading.get_ident()
            self.allocator.relieve_with(self._relieved)

    def leave_caller(self) -> None:
        """Note that the caller's code is behind: a backward begins, or none will."""
        self._between = False

    def advise(self, asked: Bytes, charged: Bytes) -> tuple[str, Bytes | None]:
        """Name a budget that would have allowed a request, and as much again as the caller's code took.

        A loss takes several times its first large request: see `tightrope.run.ledger.headroom`. What an
        earlier step took is known.
        """
        own = 0
        if self._own is not None and self._own < _UNLIMITED:
            own = self._own + self.older + self.hidden
        budget = own or self.budget
        if not budget:
            return "", None
        step = self._step()
        said = ""
        if self._between and step is not None and self._thread == threading.get_ident():
            left = max(budget - self.hidden - self.older - charged + step.grown, 0)
            said = f"{format_bytes(left)} were left for code between forward and backward. "
        took = asked if step is None else step.after(asked)
        took = max(took, charged // 2 if own else 0, _LEAST_MORE)
        held = charged + self.older + self.hidden
        allowed = max(budget, held + asked + (step.coming if step is not None else 0))
        if (enough := self.enough.keeping) > allowed:
            return f"{said}Try budget={enough}: by the shapes it is enough, and less may be.", enough
        if step is not None:  # of a larger budget, the plan may take as much as the step without one
            allowed = max(allowed, self.likely.dropping)
        found = allowed + took
        said += f"Try budget={found} next: it allows this request, and {took} bytes of what comes after it, "
        return f"{said}which was not seen yet.", found

    def _relieved(self) -> bool:
        return not _is_taken(self.turn) and self._own is None and (self._relief() or self._collected())

    def _collected(self) -> bool:
        """Collect garbage, a model that nobody holds and its limit with it; tell whether that made room."""
        limit, charged = self.budget, self.charged()
        gc.collect()
        return self.budget != limit or self.charged() < charged

    @property
    def older(self) -> Bytes:
        """Bytes of known tensors that the hook did not serve."""
        return self._older.bytes

    def note_tensors(self, tensors: Iterable[Any]) -> None:
        """Look among ``tensors`` for some older than the hook and adjust the limit."""
        counts = self.allocator is not None and self.device == CPU
        if counts and self._older.note(tensors) != self._applied:
            self._apply()

    def search(self) -> None:
        """Look for tensors older than the hook among all that Python knows, and adjust the limit.

        It takes 0.1 s with 400,000 objects, as a collection does, and 7 us more for each tensor found.
        """
        if self.allocator is not None and self.device == CPU:
            self._older.search()
            if self.older != self._applied:
                self._apply()

    @contextmanager
    def observed(self, *, profiled: bool = False, held: Bytes = 0) -> Iterator[Observation]:
        """Observe the bytes of what runs inside.

        Args:
            profiled: without a hook, ask torch's profiler (slow); else nothing is observed then.
            held: bytes that the step holds already, where no hook knows.
        """
        found = Observation()
        if self.allocator is None:
            with _profiled(found, self.charged() + held) if profiled else nullcontext():
                yield found
            return
        start = self.allocator.stats()
        self.allocator.reset_peaks()
        try:
            yield found
        finally:
            self.saw(found, start, self.allocator.stats())
            self.allocator.reset_peaks()

    def saw(self, found: Observation, start: MemoryStats, end: MemoryStats) -> None:
        """Fill an observation from the counters at its ends; behind each of them the peaks start afresh."""
        older = self._older.known
        found.before, found.heap_before = start.charged_peak + older, start.heap_peak
        found.heap, found.heap_left = start.heap_live, end.heap_live
        found.charged = end.charged_peak + older
        found.above, found.left = end.live_peak - start.live, end.live - start.live
        self._peak = max(self._peak, found.before, found.charged)

    def heap(self) -> Bytes:
        """Live bytes on the heap now."""
        return self.allocator.stats().heap_live if self.allocator is not None else 0

    def heap_refused(self) -> Bytes:
        """Heap bytes that would have been live had the largest refusal since the last mark been granted."""
        return self.allocator.stats().heap_refused if self.allocator is not None else 0

    def take_peak(self) -> Bytes:
        """Return the most bytes held since the last call of this, and start afresh; 0 without a hook.

        What was held since the last observation counts too, whoever looks at that besides.
        """
        if self.allocator is None:
            return 0
        peak, self._peak = max(self._peak, self.allocator.stats().charged_peak + self.older), 0
        return peak

    def open_step(self, close: Callable[[], None] | None) -> None:
        """End the open level 0 step, if any: the allocator has one recording or replay per thread.

        Args:
            close: ends the step that opens now, or None when none does.
        """
        before, self._open_step = self._open_step, close
        if before is not None:
            before()

    def survey(self) -> None:
        """Let go of what nobody uses before a plan counts it as held: models form reference cycles.

        Without a hook, count the tensors that Python knows: nobody else does.
        """
        if self.allocator is None:
            self.marked = uncounted_bytes(None)
            return
        before = self._counted()
        gc.collect()
        self.search()
        self.marked -= max(before - self._counted(), 0)

    def mark(self) -> None:
        """Remember what is charged now: a capture that follows holds transient bytes of its own."""
        if self.allocator is not None:
            if self.watchers:
                trim_all()
            self.marked = self._counted()

    def charged(self) -> Bytes:
        """Bytes held now: what the hook charges, less idle arenas, plus older tensors."""
        return self._counted() + self.older

    def _counted(self) -> Bytes:
        if self.allocator is None:
            return self.marked
        with self.turn:
            return self.allocator.stats().charged - reclaimable(self.allocator)

    def counted(self) -> tuple[Bytes, Bytes]:
        """Bytes that the hook charges now, idle arenas included, and those on the heap; 0 without one."""
        if self.allocator is None:
            return 0, 0
        stats = self.allocator.stats()
        return stats.charged, stats.heap_live

    def held(self) -> Bytes:
        """Bytes charged now, idle arenas included, plus older tensors."""
        return (self.counted()[0] if self.allocator is not None else self.marked) + self._older.known

    def charged_at_mark(self) -> Bytes:
        """Bytes charged when `mark` was called last, with all older tensors known by now."""
        return self.marked + self.older


def _is_taken(lock: Any) -> bool:
    """Tell whether some thread holds a lock that a thread may take several times."""
    free: bool = not lock._is_owned() and lock.acquire(blocking=False)
    if free:
        lock.release()
    return not free


@contextmanager
def _profiled(found: Observation, start: Bytes) -> Iterator[None]:
    """Fill a window from the profiler's memory events."""
    watcher = cpu_profile()
    start_profile(watcher)
    try:
        yield
    finally:
        watcher.stop()
        for change in changes_of(watcher):
            found.left += change
            found.above = max(found.above, found.left)
        found.charged = start + found.above


def _advise(asked: Bytes, charged: Bytes, limit: Bytes) -> tuple[str, Bytes | None]:
    """Let the accounts answer whose limit it was: a request for a GPU says nothing of the CPU's budgets."""
    every = list(_MADE.values())
    met = [one for one in every if one.allocator is not None and one.allocator.limit == limit]
    return (met or every)[0].advise(asked, charged) if every else ("", None)


def _hook(device: torch.device) -> tuple[Allocator | None, str]:
    """Install the hook of a device; on a CPU where it can be neither built nor loaded, warn and say why."""
    if device.type == "cuda":
        return cuda_allocator(device.index or 0), ""
    why = missing("allocator")
    if not why:
        return allocator(), ""
    warn_once(f"budgets are checked, not enforced: {why}")
    short = "the native part is missing" if compiler() else "no C++ compiler"
    return None, f"checked, not enforced: {short}"


def has_accounts(device: torch.device = CPU) -> bool:
    """Tell whether somebody asked for the accounts of a device."""
    return device in _MADE


def accounts(device: torch.device = CPU) -> Accounts:
    """Return the process's accounts of a device; the first call installs the allocator hook.

    Raises:
        NativeError: another library has installed an allocator that does not give way.
    """
    one = torch.device("cuda", device.index or 0) if device.type == "cuda" else CPU
    if one not in _MADE:
        _MADE[one] = Accounts(one)
    return _MADE[one]
