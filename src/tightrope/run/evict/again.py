"""Recomputation: the ops behind an evicted storage run again, depth first.

Inputs of an op are pinned one by one as they become resident, and not before: an input further back may go in
between and come back, so less is held at once than if all were pinned first. Each round pins one more, so it ends.
"""

from typing import Any

import torch

from tightrope.capture._torch import storage_at
from tightrope.core import TightropeError
from tightrope.native.hook.evicting import Window
from tightrope.run.evict.core import EvictionArena
from tightrope.run.evict.records import Call, Place, Version, tensors_of


class _Frame:
    __slots__ = ("call", "done", "pinned", "version")

    def __init__(self, version: Version) -> None:
        if version.call is None:
            raise TightropeError("evict: a tensor was evicted that cannot be made again; please report this.")
        self.version, self.call = version, version.call
        self.done = 0
        self.pinned: list[int] = []


class Again:
    """Runs ops again."""

    def __init__(self, window: Window, arena: EvictionArena, versions: dict[int, Version]) -> None:
        self._window, self._arena, self._versions = window, arena, versions
        self.num_calls = self.ns = 0

    def restore(self, identity: int) -> None:
        """Make a record's storage resident; whatever is missing on the way is made first."""
        arena = self._arena
        if arena.resident(identity):
            return
        frames = [_Frame(self._versions[identity])]
        try:
            while frames:
                frame = frames[-1]
                missing = None
                for version in frame.call.inputs[frame.done :]:
                    if not arena.resident(version.id):
                        missing = version
                        break
                    arena.pin(version.id)
                    frame.pinned.append(version.id)
                    frame.done += 1
                if missing is not None:
                    frames.append(_Frame(missing))
                    continue
                self._run(frame.call, frame.version)
                frames.pop()
                for pinned in frame.pinned:
                    arena.unpin(pinned)
        finally:
            for frame in frames:
                for pinned in frame.pinned:
                    arena.unpin(pinned)

    def _run(self, call: Call, wanted: Version) -> None:
        arena = self._arena
        arena.begin_op(call.ns, 0, again=True)
        storages: dict[int, torch.UntypedStorage] = {}
        for old, _ in call.changed:
            if self._window.call("pins", old.id) > 1:
                storages[old.id] = self._tensor_of(old.id).clone().untyped_storage()
        args = [self._fill(one, storages) for one in call.args]
        kwargs = {name: self._fill(one, storages) for name, one in call.kwargs.items()}
        with torch.set_grad_enabled(call.grad):
            result = self._drawn_as_before(call, args, kwargs)
        self.num_calls += 1
        self.ns += call.ns
        arena.advance(call.ns, again=True)
        for version in call.inputs:
            arena.touch(version.id)
        for version, tensor in zip(call.outputs, tensors_of(result), strict=True):
            if version is not None:
                self._give(version, wanted, tensor.untyped_storage())
        for old, new in call.changed:
            self._give(new, wanted, storages[old.id])

    def _drawn_as_before(self, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if call.state is None:
            return call.func(*args, **kwargs)
        generator, before = call.state
        now = generator.clone_state()
        self._set_state(generator, before)
        try:
            return call.func(*args, **kwargs)
        finally:
            self._set_state(generator, now)

    def _give(self, version: Version, wanted: Version, storage: torch.UntypedStorage) -> None:
        if version.id < 0 or self._arena.resident(version.id):
            return
        if version is wanted or self._window.call("is_held", version.id):
            self._window.call("restore", version.id, storage._cdata)

    def _set_state(self, generator: torch.Generator, state: torch.Generator) -> None:
        self._window.call("suspend", 1)
        generator.set_state(state.get_state())
        self._window.call("suspend", 0)

    def _storage(self, identity: int) -> torch.UntypedStorage:
        address = self._window.call("storage", identity)
        storage = storage_at(address)
        self._window.native.tr_evict_unref(address)
        return storage

    def _tensor_of(self, identity: int) -> torch.Tensor:
        """View all bytes of a resident storage."""
        storage = self._storage(identity)
        return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))

    def _fill(self, one: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
        if isinstance(one, Place):
            identity = one.version.id
            storage = storages.get(identity)
            if storage is None:
                storage = storages[identity] = self._storage(identity)
            return torch.empty(0, dtype=one.dtype).set_(storage, one.offset, one.size, one.stride)
        if type(one) is list:
            return [self._fill(item, storages) for item in one]
        return one
