"""The interception as Python sees it: C++ (``native/hook/watch.hpp``) meets every op of the block's thread.

Python keeps what is rare: reads that are no ops, words of errors, figures, and the plan that is followed. To
code that asks for the innermost dispatch mode the block passes for one, and nothing is compiled inside.
"""

import ctypes
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import torch

from tightrope.capture._eager import standing_in
from tightrope.capture._torch import nothing_compiled
from tightrope.core import Bytes, TightropeError, format_time
from tightrope.core.plugins import absent, installed, loaded
from tightrope.core.units import Nanoseconds
from tightrope.native.hook.evicting import AFTER, BEFORE, TELL, EvictionWindow
from tightrope.native.hook.refused import told_later
from tightrope.run.evict.core import EvictionArena
from tightrope.run.evict.policies import Policy

storage_of: Final = torch.Tensor.untyped_storage
"""As it is outside `watched_reads`."""
_NANOSECONDS: Final = re.compile(r"\b(\d+) ns\b")
_OUT_OF_MEMORY, _BROKEN = 0, 1


class StepFollower(Protocol):
    """What knows a training step again while it runs, and follows the plan that it made for it.

    Attributes:
        planned_steps: that were followed to their end.
    """

    planned_steps: int

    def before(self, key: Hashable) -> None:
        """Prepare the next op; keys are equal for ops that do the same on the same sizes."""

    def after(
        self,
        target: str,
        ns: Nanoseconds,
        taken: Bytes,
        reads: Sequence[int],
        creates: Sequence[int],
        changes: Sequence[tuple[int, int]],
    ) -> None:
        """Note an op that ran for the first time: its name, time and bytes, and ids of storages."""

    def released(self, storage: int) -> None:
        """Note that nobody outside holds a storage any more."""

    def forgotten(self, storage: int) -> None:
        """Note that a record is gone."""

    def end_step(self) -> None:
        """End a step."""


def follower_maker() -> Callable[..., StepFollower]:
    """Find what follows plans: the entry point ``planned`` of the group ``tightrope.followers``.

    Raises:
        TightropeError: its plug-in is not installed.
    """
    if not (entries := installed("tightrope.followers").get("planned", ())):
        raise absent('policy="planned"', "planners")
    found: Callable[..., StepFollower] = loaded("what follows plans", entries)
    return found


class MadeBy(NamedTuple):
    """The op that made a storage, what it took, and its largest result."""

    name: str
    ns: Nanoseconds
    size: Bytes
    largest: Bytes


class OpWatch:
    """What meets the ops of a thread, with a window of its memory."""

    def __init__(self, window: EvictionWindow, arena: EvictionArena) -> None:
        self.window, self.arena = window, arena
        self.follower: StepFollower | None = None
        self._num_followed = 0
        self.on_refusal: Callable[[torch.OutOfMemoryError, str], BaseException] | None = None
        self._failed: BaseException | None = None
        self._counts: tuple[int, ...] | None = None  # after the end
        self._calls = TELL(self._tell), BEFORE(self._before), AFTER(self._after)
        window.watch(self._calls[0])

    @contextmanager
    def seeing(self) -> Iterator[None]:
        """See the ops of the thread inside a ``with`` block."""
        with standing_in(self), nothing_compiled():
            self.window.watched("see", 1)
            try:
                yield
            finally:
                self.window.watched("see", 0)

    def is_infra_mode(self) -> bool:
        """Say, as a mode would, that torch captures nothing inside."""
        return False

    def ignore_compile_internals(self) -> bool:
        """Say, as a mode would, that torch captures nothing inside."""
        return False

    @property
    def num_ops(self) -> int:
        """Ops that ran, without views."""
        return self._count(0)

    @property
    def num_recomputed(self) -> int:
        """Ops that ran again."""
        return self._count(1)

    @property
    def recomputed_ns(self) -> Nanoseconds:
        """What those took."""
        return self._count(2)

    @property
    def num_records(self) -> int:
        """Records of storages."""
        return self._count(3)

    def _count(self, which: int) -> int:
        return self.window.watched("count", which) if self._counts is None else self._counts[which]

    def maker(self, identity: int) -> MadeBy | None:
        """Tell the op that makes a storage again; None: it stays."""
        took = (ctypes.c_int64 * 3)()
        name = self.window.native.tr_watch_maker(self.window.watcher, identity, took)
        return None if name is None else MadeBy(name.decode(), *took)

    def _tell(self, what: int, text: bytes, op: bytes) -> int:
        """Turn an error of C++ into one of Python, which is raised in its place."""
        said = _NANOSECONDS.sub(lambda found: format_time(int(found[1])), text.decode())
        failed, self._failed = self._failed, None
        try:
            if what == _BROKEN:
                failed = TightropeError(said)
            elif what == _OUT_OF_MEMORY:
                failed = torch.OutOfMemoryError(said)
                if self.on_refusal is not None:
                    failed = self.on_refusal(failed, op.decode())
        except BaseException as error:
            failed = error
        return told_later(failed or TightropeError(said))

    # ---

    def follow(self, chosen: Policy, size: Bytes) -> None:
        """From the next op on, record steps and follow plans made for them."""
        self.window.call("note_released")
        self.follower = follower_maker()(
            self.arena, self._describe, self.restore, self._let_go, torch.OutOfMemoryError, size, self._use
        )
        self.window.follow(self._calls[1], self._calls[2])
        self._use(chosen)

    @property
    def num_followed(self) -> int:
        """Steps that followed a plan to their end."""
        return self._num_followed + (self.follower.planned_steps if self.follower else 0)

    def unfollow(self) -> None:
        """Record and follow nothing from now on."""
        self._num_followed, self.follower = self.num_followed, None
        self.window.follow(None, None)

    def end_step(self) -> None:
        """End a step of the loop, where steps are followed."""
        if self.follower is not None:
            self._note_released(self.follower)
            self.follower.end_step()

    def _before(self, kind: int, shape: int) -> int:
        try:
            if self.follower is not None:
                self.follower.before((kind, shape))
        except BaseException as error:
            self._failed = error
            return 1
        return 0

    def _after(self, name: bytes, numbers: Any, ids: Any) -> int:
        """Tell the follower what was let go since the last op, and what this one did."""
        ns, size, *counts = numbers[:6]
        rows, at = list[list[int]](), 0
        for count in (counts[0], counts[1], counts[2], counts[2], counts[3]):
            rows.append(ids[at : at + count])
            at += count
        reads, creates, changed, olds, gone = rows
        try:
            if (follower := self.follower) is not None:
                self._note_released(follower)
                follower.after(name.decode(), ns, size, reads, creates, list(zip(changed, olds, strict=True)))
                for identity in gone:
                    follower.forgotten(identity)
        except BaseException as error:
            self._failed = error
            return 1
        return 0

    def _note_released(self, follower: StepFollower) -> None:
        for identity in self.window.released():
            follower.released(identity)

    def _describe(self, identity: int) -> tuple[Bytes, bool]:
        return self.window.size(identity), not self.window.call("is_inside", identity)

    def _let_go(self, identity: int) -> None:
        self.window.call("evict_idle", identity)

    def _use(self, chosen: Policy) -> None:
        self.arena.set_policy(chosen)
        self.window.call("soft", int(chosen.soft_pins))

    # ---

    def find(self, tensor: torch.Tensor) -> int:
        """Find the record of a tensor's storage; -1: the arena does not hold it."""
        if tensor.layout is not torch.strided:
            return -1
        identity = self.window.call("find", storage_of(tensor)._cdata)
        known = identity >= 0 and self.window.watched("knows", identity)
        return identity if known and self.window.call("is_inside", identity) else -1

    def is_exposed(self, identity: int) -> bool:
        """Tell whether others may write a storage."""
        return self.window.watched("knows", identity) > 1

    def restore(self, ids: list[int]) -> None:
        """Make storages resident.

        Raises:
            torch.OutOfMemoryError: there is no room.
        """
        self.window.check(self.window.watched("restore", (ctypes.c_int64 * max(len(ids), 1))(*ids), len(ids)))

    def bring_back(self, identity: int, *, exposed: bool) -> None:
        """Make a storage resident and pin it, outside any op; others may write one that is ``exposed``."""
        self.window.check(self.window.watched("read", identity, int(exposed)))

    def collect(self) -> None:
        """Drop what was forgotten since the last op."""
        self.window.watched("collect")

    def close(self, leaving: list[int]) -> None:
        """Forget all records, and end the arena; ``leaving`` move to the heap where that has room."""
        self._counts = self.num_ops, self.num_recomputed, self.recomputed_ns, 0
        self.window.close(leaving)
