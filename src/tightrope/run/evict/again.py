"""Recomputation: the ops behind an evicted storage run again, depth first.

Inputs of an op are pinned one by one as they become resident, and not before: an input further back may go
in between and come back, so less is held at once than if all were pinned first. Where the policy says so, all
that are resident are pinned at first, so that fewer run twice; where nothing else can go they may go even
then, some times (`Evicting::allocate`), and from then on are pinned one by one. Tensors
that evict each other without end are refused: what one op waits for may take a number of runs in
proportion to the records.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from tightrope.capture._torch import storage_at
from tightrope.core import TightropeError, format_time
from tightrope.native.hook.evicting import EvictionWindow
from tightrope.run.evict.core import EvictionArena
from tightrope.run.evict.records import Call, Place, Version, storage_of, tensors_of

_RUNS_PER_RECORD: Final = 8
_LEAST_RUNS: Final = 1024
_ENDLESS: Final = (
    "evict: {runs} ops ran again for what one op reads, and it is not there: at this budget they evict "
    "each other."
)
_TOO_LONG: Final = (
    "evict: what ran again took {again}, and the ops themselves {first}: more than most_again={most:g} times."
)


class Again:
    """Runs ops again."""

    def __init__(self, window: EvictionWindow, arena: EvictionArena, versions: dict[int, Version]) -> None:
        self._window, self._arena, self._versions = window, arena, versions
        self._waiting: list[Version] = []
        self.num_calls = self.ns = 0
        self.most_again: float | None = None
        self.kept: set[int] = set()  # of results of an op that runs again by a plan
        self._since = 0

    def begin(self) -> None:
        """Count runs from here on, as another op waits."""
        self._since = self.num_calls

    def _bound_runs(self) -> None:
        runs, most = self.num_calls - self._since, _RUNS_PER_RECORD * len(self._versions) + _LEAST_RUNS
        if runs > most:
            raise torch.OutOfMemoryError(_ENDLESS.format(runs=runs))
        if self.most_again is not None and self.ns > self.most_again * self._arena.base:
            again, first = format_time(self.ns), format_time(self._arena.base)
            raise torch.OutOfMemoryError(_TOO_LONG.format(again=again, first=first, most=self.most_again))

    def restore(self, identity: int) -> None:
        """Make a record's storage resident; whatever is missing on the way is made first."""
        if self._arena.resident(identity):
            return
        window, base = self._window, len(self._waiting)
        self._wait_for(self._versions[identity])
        try:
            while len(self._waiting) > base:
                version = self._waiting[-1]
                assert version.call is not None
                missing = self.pin([one.id for one in version.call.inputs])
                if missing >= 0:
                    self._wait_for(self._versions[missing])
                    continue
                self._bound_runs()
                self._run(version.call, version)
                self._waiting.pop()
                window.call("close_frame")
        finally:
            while len(self._waiting) > base:
                self._waiting.pop()
                window.call("close_frame")

    @contextmanager
    def resident(self, ids: list[int]) -> Iterator[None]:
        """Make storages resident and pin them inside a ``with`` block."""
        self._window.call("open_frame")
        try:
            while (missing := self.pin(ids)) >= 0:
                self.restore(missing)
            yield
        finally:
            self._window.call("close_frame")

    def _wait_for(self, version: Version) -> None:
        if version.call is None:
            raise TightropeError("evict: a tensor was evicted that cannot be recomputed; please report this.")
        self._waiting.append(version)
        self._window.call("open_frame")

    def pin(self, ids: list[int]) -> int:
        """Pin inputs of the innermost op that waits; return the first that is missing; -1: all are pinned."""
        self._window.rows.cells[: len(ids)] = ids
        return self._window.call("pin_resident", len(ids))

    def _run(self, call: Call, wanted: Version) -> None:
        arena = self._arena
        arena.begin_op(call.ns, call.size, largest=call.largest, again=True)
        storages: dict[int, torch.UntypedStorage] = {}
        for old, _ in call.changed:
            if self._window.call("pins", old.id) > 1:
                storages[old.id] = storage_of(self._tensor_of(old.id).clone())
        args = [self._fill(one, storages) for one in call.args]
        kwargs = {name: self._fill(one, storages) for name, one in call.kwargs.items()}
        default = torch.get_default_dtype()
        torch.set_default_dtype(call.default)
        try:
            with torch.set_grad_enabled(call.grad):
                result = self._drawn_as_before(call, args, kwargs)
        finally:
            torch.set_default_dtype(default)
        self.num_calls += 1
        self.ns += call.ns
        arena.advance(call.ns, again=True)
        for version in call.inputs:
            arena.touch(version.id)
        for made, tensor in zip(call.outputs, tensors_of(result), strict=True):
            if made is not None:
                self._give(made, wanted, storage_of(tensor))
        for old, new in call.changed:
            self._give(new, wanted, storages[old.id])

    def _drawn_as_before(self, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if call.state is None:
            return call.func(*args, **kwargs)
        generator, before = call.state
        now = generator.clone_state()
        self.set_state(generator, before)
        try:
            return call.func(*args, **kwargs)
        finally:
            self.set_state(generator, now)

    def _give(self, version: Version, wanted: Version, storage: torch.UntypedStorage) -> None:
        if version.id < 0 or self._arena.resident(version.id):
            return
        if storage.nbytes() != self._window.size(version.id):
            made = wanted.call.func if wanted.call is not None else "an op"
            raise TightropeError(
                f"evict: {made} took {storage.nbytes()} bytes when it ran again, and not "
                f"{self._window.size(version.id)}: a setting that it depends on changed in the block."
            )
        needed = any(one.call is not None and version in one.call.inputs for one in self._waiting)
        needed = needed or version.id in self.kept
        if version is wanted or needed or self._window.call("is_held", version.id):
            self._window.call("restore", version.id, storage._cdata)

    def set_state(self, generator: torch.Generator, state: torch.Generator) -> None:
        """Put a generator into the state of another; what that allocates is not the arena's."""
        before = self._window.call("suspend", 1)
        generator.set_state(state.get_state())
        self._window.call("suspend", before)

    def storage(self, identity: int) -> torch.UntypedStorage:
        """Hold a resident storage."""
        address = self._window.call("storage", identity)
        storage = storage_at(address)
        self._window.native.tr_evict_unref(address)
        return storage

    def _tensor_of(self, identity: int) -> torch.Tensor:
        """View all bytes of a resident storage."""
        storage = self.storage(identity)
        return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))

    def _fill(self, one: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
        if isinstance(one, Place):
            identity = one.version.id
            storage = storages.get(identity)
            if storage is None:
                storage = storages[identity] = self.storage(identity)
            return torch.empty(0, dtype=one.dtype).set_(storage, one.offset, one.size, one.stride)
        if type(one) is list:
            return [self._fill(item, storages) for item in one]
        return one
