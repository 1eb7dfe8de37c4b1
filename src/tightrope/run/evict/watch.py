"""The interception: every op that torch runs in the block, before and after.

Before an op its inputs are made resident and pinned; after it the arena hears what the op took and what it
made, and the record of the call is kept for as long as something may have to be made again by it.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import torch

from tightrope.capture._torch import intercepting
from tightrope.core import Bytes, TightropeError
from tightrope.native.hook.evicting import CHANGED, ELSEWHERE, FORGOTTEN, KEYS, OUTPUTS, EvictionWindow
from tightrope.run.evict.again import Again
from tightrope.run.evict.core import EvictionArena
from tightrope.run.evict.follow import TINY, Follower
from tightrope.run.evict.kinds import OpKind, classify, without_statistics
from tightrope.run.evict.policies import Policy
from tightrope.run.evict.records import Call, Place, Version, storage_of, tensors_of, without_collections
from tightrope.run.evict.rehearse import rehearse

_PAD: Final = [[0] * (4 - n) for n in range(5)]
_PAD3: Final = [[0] * (3 - n) for n in range(4)]
_LOW: Final = (1 << 62) - 1
"""Tensors of an op whose writes the arena looks at by itself."""
_TRIES: Final = 4
"""An op that ran out begins again so often, each time with room for all that it had asked for."""
_SPARSE: Final = (
    "evict: {op} has a tensor without a storage, as sparse ones are; run it outside the block, or densely."
)
_MOST: Final = 1 << 14
"""Tensors of one op."""
_DEEPEST: Final = 32
"""After so many changes in place a tensor stays, and what went into it may go."""
_TENSOR: Final = torch.Tensor
_ROWS: Final = (list, tuple)
_FEW: Final = 4
"""So many inputs are compared one by one."""
_COUNTS: Final = (torch.int64, torch.int32)
_MOST_COUNTS: Final[Bytes] = 1 << 15
"""Larger lists of integers may move."""
_Base: Any = intercepting()


class OpWatch(_Base):  # type: ignore[misc]
    """Calls between the ops of a thread and a window of its memory."""

    def __init__(self, window: EvictionWindow, arena: EvictionArena) -> None:
        super().__init__()
        self.window, self.arena = window, arena
        self.versions: dict[int, Version] = {}
        self.again = Again(window, arena, self.versions)
        self.kinds: dict[Any, OpKind] = {}
        self.num_ops = 0
        self.own = False  # ops that this package runs itself
        self.any_exposed = False
        self.follower: Follower | None = None
        self._num_followed = 0
        self.on_refusal: Callable[[torch.OutOfMemoryError, str], BaseException] | None = None
        native, handle = window.native, window.handle
        self._inputs, self._finish, self._handle = native.tr_evict_inputs, native.tr_evict_finish, handle
        self._cells, self._width = window.rows.cells, window.rows.width
        self._first_output = OUTPUTS * self._width

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = self.kinds.get(func)
        if kind is None:
            kind = self._learn(func)
        if kind.plain or self.own:
            return func(*args, **kwargs) if kwargs else func(*args)
        if types:
            return NotImplemented  # of a subclass that calls other ops, which come here
        if kind.composite:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        keys: list[int] = []
        places: list[Place] = []
        try:
            recipe: list[Any] = []
            for one in args:
                if isinstance(one, _TENSOR):
                    keys.append(storage_of(one)._cdata)
                    place = Place(one)
                    places.append(place)
                    recipe.append(place)
                else:
                    recipe.append(self._place(one, keys, places) if isinstance(one, _ROWS) else one)
            named = {key: self._place(one, keys, places) for key, one in kwargs.items()} if kwargs else kwargs
        except NotImplementedError as error:
            raise TightropeError(_SPARSE.format(op=kind.name)) from error
        count = len(keys)
        if count > _MOST:
            raise TightropeError(f"evict: {kind.name} was given {count} tensors, more than {_MOST}.")
        writes = aside = 0
        if kind.write_names:
            writes = self._mask(kind, args, kwargs or {})
        if kind.training >= 0 and kind.statistics_are_aside(args):
            aside = self._statistics(args)
            if kind.name.endswith("norm"):
                writes |= aside
            recipe = list(without_statistics(tuple(recipe)))
        sizes = tuple([place.size for place in places])
        shape = hash(sizes if count == len(args) else (sizes, _numbers(args))) >> 8
        if self.follower is not None:
            self.follower.before((kind.number, shape))
        if count <= 4:
            missing = self._inputs(
                self._handle, kind.number, shape, writes & _LOW, aside, count, *keys, *_PAD[count]
            )
        else:
            self._cells[:count] = keys
            missing = self._inputs(self._handle, kind.number, shape, writes & _LOW, aside, count, 0, 0, 0, 0)
        ids = self._cells[:count]
        risky: list[int] = []
        if missing:
            risky = self._bring_back(kind, shape, ids, writes, aside)
        elif writes > _LOW:
            with without_collections():
                self._secure(ids, writes, risky)
        versions = self.versions
        for place, identity in zip(places, ids, strict=True):
            version = versions.get(identity)
            if version is None:
                version = versions[identity] = Version(identity)
            place.version = version
        if writes:
            self._fill_blanks(ids, writes)
        state = _state(args, kwargs) if kind.random else None
        start = perf_counter_ns()
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
            ns = perf_counter_ns() - start
        except BaseException as error:
            result, ns = self._run(error, kind, func, args, kwargs, (shape, ids, writes, aside), state, risky)
        call = Call(func, tuple(recipe), named or {}, ns)
        call.state = state
        self._ran(kind, call, result, ids, places, writes, aside)
        for identity in risky:
            self.arena.unpin(identity)
        return result

    def _run(
        self,
        error: BaseException,
        kind: OpKind,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        inputs: tuple[int, list[int], int, int],
        state: tuple[torch.Generator, torch.Generator] | None,
        risky: list[int],
    ) -> tuple[Any, int]:
        """Run an op that ran out again, with room for all that it had asked for; raise any other error."""
        shape, ids, writes, aside = inputs
        for _ in range(_TRIES):
            if writes or not isinstance(error, torch.OutOfMemoryError):
                break
            self.window.call("abandon")
            error.__traceback__ = None
            if state is not None:
                self.again.set_state(*state)
            risky += self._bring_back(kind, shape, ids, 0, aside)
            start = perf_counter_ns()
            try:
                result = func(*args, **kwargs) if kwargs else func(*args)
            except BaseException as another:
                error = another
            else:
                return result, perf_counter_ns() - start
        self._failed(kind, error, risky)
        raise error

    def _learn(self, func: Any) -> OpKind:
        kind = self.kinds[func] = classify(func)
        if not kind.plain:
            kind.number = self.window.call("kind", int(kind.opaque or kind.blank))
        return kind

    def _place(self, one: Any, keys: list[int], places: list[Place]) -> Any:
        if isinstance(one, torch.Tensor):
            keys.append(storage_of(one)._cdata)
            place = Place(one)
            places.append(place)
            return place
        if type(one) in (list, tuple) and one and not isinstance(one[0], int | float):
            return [self._place(item, keys, places) for item in one]
        return one

    def _mask(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Say as bits which of the op's tensors it changes."""
        mask = at = 0
        for k, one in enumerate(args):
            found = len(tensors_of(one))
            if k in kind.writes:
                mask |= ((1 << found) - 1) << at
            at += found
        for name, one in kwargs.items():
            found = len(tensors_of(one))
            if name in kind.write_names:
                mask |= ((1 << found) - 1) << at
            at += found
        return mask

    @staticmethod
    def _statistics(args: tuple[Any, ...]) -> int:
        before = len(tensors_of(list(args[:3])))
        return ((1 << len(tensors_of(list(args[3:5])))) - 1) << before

    def _bring_back(self, kind: OpKind, shape: int, ids: list[int], writes: int, aside: int) -> list[int]:
        """Make inputs resident, and what could not be made again once the op has changed them."""
        risky: list[int] = []
        self.again.begin()
        try:
            with without_collections(), self.again.resident(list(dict.fromkeys(ids))):
                self._secure(ids, writes, risky)
                while (missing := self.again.pin(list(dict.fromkeys(ids)))) >= 0:
                    self.again.restore(missing)
                self._cells[: len(ids)] = ids
                self.window.call("prepare", kind.number, shape, aside, len(ids))
        except BaseException as error:
            for identity in risky:
                self.arena.unpin(identity)
            if isinstance(error, torch.OutOfMemoryError) and self.on_refusal is not None:
                raise self.on_refusal(error, kind.name) from None
            raise
        return risky

    def _secure(self, ids: list[int], writes: int, pinned: list[int]) -> None:
        """Bring back and pin what could not be made again once the op has changed what it writes.

        Only within `without_collections`.
        """
        for k, identity in enumerate(ids):
            while writes >> k & 1 and (found := self.arena.at_risk(identity)):
                self.again.restore(found[0])
                self.arena.pin(found[0])
                pinned.append(found[0])

    def _fill_blanks(self, ids: list[int], writes: int) -> None:
        """From its first write on, what was made without values can be made again."""
        for k, identity in enumerate(ids):
            version = self.versions[identity]
            if version.blank and writes >> k & 1:
                version.blank = False
                self.arena.produced(identity, 0, ())

    def _failed(self, kind: OpKind, error: BaseException, risky: list[int]) -> None:
        self.window.call("abandon")
        for identity in risky:
            self.arena.unpin(identity)
        if isinstance(error, torch.OutOfMemoryError) and self.on_refusal is not None:
            raise self.on_refusal(error, kind.name) from None

    def _ran(
        self,
        kind: OpKind,
        call: Call,
        result: Any,
        ids: list[int],
        places: list[Place],
        writes: int,
        aside: int,
    ) -> None:
        """Tell the arena what was made and changed, and keep the call where it may be needed."""
        self.num_ops += 1
        cells, width, versions = self._cells, self._width, self.versions
        made = [result] if type(result) is torch.Tensor else tensors_of(result)
        try:
            keys = [storage_of(tensor)._cdata for tensor in made]
        except NotImplementedError as error:
            self.window.call("abandon")
            raise TightropeError(_SPARSE.format(op=kind.name)) from error
        changed: list[int] = []
        if writes:
            changed = list(dict.fromkeys(identity for k, identity in enumerate(ids) if writes >> k & 1))
            cells[CHANGED * width : CHANGED * width + len(changed)] = changed
        count = len(keys)
        if count <= 3:
            gone = self._finish(self._handle, kind.number, call.ns, count, len(changed), *keys, *_PAD3[count])
        else:
            cells[OUTPUTS * width : OUTPUTS * width + count] = keys
            gone = self._finish(self._handle, kind.number, call.ns, count, len(changed), 0, 0, 0)
        call.ns, call.size, call.largest = cells[(FORGOTTEN + 1) * width - 3 : (FORGOTTEN + 1) * width]
        kept = kind.opaque or kind.blank
        if kind.blank:
            call = _blank_again(made[0], call.ns)
        odd = False
        for place in places:
            odd |= place.odd
        for tensor in made:
            odd |= tensor.is_quantized
        numbers = cells[self._first_output : self._first_output + count]
        exposed = self.any_exposed and any(place.version.exposed for place in places)
        if not kept and (odd or exposed):
            kept = True
            for identity in numbers:
                if identity >= 0:
                    self.arena.settle(identity)
        for identity, tensor in zip(numbers, made, strict=True):
            if identity < 0:
                call.outputs.append(None)
                continue
            stays = (kept and not kind.blank) or (
                not kept and tensor.nbytes <= TINY and storage_of(tensor).nbytes() <= TINY
            )
            if tensor.dtype in _COUNTS and tensor.dim() == 1 and tensor.nbytes <= _MOST_COUNTS:
                self.window.call("root", identity)  # code of torch reads lengths by address between ops
                stays = True
            version = versions[identity] = Version(identity, None if stays else call)
            version.blank = kind.blank
            call.outputs.append(version)
        olds = cells[CHANGED * width : CHANGED * width + len(changed)]
        if changed:
            self._changed(call, changed, olds, aside, ids)
            if odd:
                for identity in changed:
                    self.arena.settle(identity)
        if not kept:
            call.inputs = _read(places, aside)
        gone_ids = cells[FORGOTTEN * width : FORGOTTEN * width + gone]
        if self.follower is not None:
            self._note(kind, call, ids, numbers, list(zip(changed, olds, strict=True)))
        if gone:
            self.forget(gone_ids)

    def _changed(self, call: Call, changed: list[int], olds: list[int], aside: int, ids: list[int]) -> None:
        versions = self.versions
        outside = {identity for k, identity in enumerate(ids) if aside >> k & 1}
        for identity, old in zip(changed, olds, strict=True):
            if old == ELSEWHERE:
                continue
            before = versions[identity]
            after = versions[identity] = Version(identity)
            before.id = old
            if old < 0:
                continue
            versions[old] = before
            after.depth = before.depth + 1
            if identity in outside:
                self.arena.settle(identity)  # the op runs again without it
            elif after.depth == _DEEPEST or self.window.size(identity) <= TINY:
                after.depth = 0
                self.arena.settle(identity)
            else:
                after.call = call
                call.changed.append((before, after))

    def _note(
        self, kind: OpKind, call: Call, ids: list[int], made: list[int], changed: list[tuple[int, int]]
    ) -> None:
        """Tell the follower what was let go since the last op, and what this one did."""
        follower = self.follower
        assert follower is not None
        self._note_released(follower)
        creates = [one for one in made if one >= 0]
        reads = list(dict.fromkeys(ids))
        follower.after(kind.name, call.ns, call.size, reads, creates, changed)

    def _note_released(self, follower: Follower) -> None:
        while count := self.window.call("released"):
            for identity in self._cells[:count]:
                follower.released(identity)

    def follow(self, chosen: Policy, size: Bytes) -> None:
        """From the next op on, record steps and follow plans made for them."""
        self.window.call("note_released")
        self.follower = Follower(
            *(self.arena, self._describe, self._make_again, self._let_go, torch.OutOfMemoryError),
            *(lambda record: rehearse(record, size), self._use),
        )
        self._use(chosen)

    @property
    def num_followed(self) -> int:
        """Steps that followed a plan to their end."""
        return self._num_followed + (self.follower.planned_steps if self.follower else 0)

    def unfollow(self) -> None:
        """Record and follow nothing from now on."""
        self._num_followed, self.follower = self.num_followed, None

    def end_step(self) -> None:
        """End a step of the loop, where steps are followed."""
        if self.follower is not None:
            self._note_released(self.follower)
            self.follower.end_step()

    def _describe(self, identity: int) -> tuple[Bytes, bool]:
        return self.window.size(identity), not self.window.call("is_inside", identity)

    def _let_go(self, identity: int) -> None:
        self.window.call("evict_idle", identity)

    def _make_again(self, ids: list[int]) -> None:
        self.again.begin()
        self.again.kept = set(ids)
        try:
            with without_collections():
                for identity in ids:
                    self.again.restore(identity)
        finally:
            self.again.kept = set()

    def _use(self, chosen: Policy) -> None:
        self.arena.set_policy(chosen)
        self.window.call("soft", int(chosen.soft_pins))

    def find(self, tensor: torch.Tensor) -> int:
        """Find the record of a tensor's storage; -1: the arena does not hold it."""
        if tensor.layout is not torch.strided:
            return -1
        identity = self.window.call("find", storage_of(tensor)._cdata)
        return identity if identity in self.versions and self.window.call("is_inside", identity) else -1

    def bring_back(self, identity: int, *, exposed: bool) -> None:
        """Make a storage resident and pin it, outside any op; others may write one that is ``exposed``."""
        self.own = True
        self.again.begin()
        try:
            with without_collections(), torch.no_grad(), torch.autocast("cpu", enabled=False):
                self.again.restore(identity)
                self.arena.pin(identity)
                if exposed and not self.versions[identity].exposed:
                    self._expose(identity)
        finally:
            self.own = False

    def _expose(self, identity: int) -> None:
        arena, pinned = self.arena, list[int]()
        self.window.call("root", identity)
        while found := arena.at_risk(identity):
            self.again.restore(found[0])
            arena.pin(found[0])
            pinned.append(found[0])
        arena.mutated(identity, 0, ())
        for one in pinned:
            arena.unpin(one)
        self.any_exposed = self.versions[identity].exposed = True

    def forget(self, ids: list[int]) -> None:
        """Drop the calls that made what nobody can ask for any more."""
        for identity in ids:
            version = self.versions.pop(identity, None)
            if self.follower is not None:
                self.follower.forgotten(identity)
            if version is not None:
                version.id, version.call = -1, None

    def collect(self) -> None:
        """Drop what was forgotten since the last op."""
        start = FORGOTTEN * self._width
        while gone := self.window.call("forgotten"):
            self.forget(self._cells[start : start + gone])


def _numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """List the whole numbers among arguments: sizes of results, dimensions, strides."""
    found: list[Any] = []
    for one in args:
        if type(one) is int:
            found.append(one)
        elif isinstance(one, _ROWS) and one and type(one[0]) is int:
            found.append(tuple(one))
    return tuple(found)


def _state(args: Any, kwargs: Any) -> tuple[torch.Generator, torch.Generator]:
    """Find the generator that an op draws from, and copy its state."""
    given = (*args, *(kwargs or {}).values())
    generator = next((g for g in given if isinstance(g, torch.Generator)), torch.default_generator)
    return generator, generator.clone_state()


def _read(places: list[Place], aside: int) -> list[Version]:
    """List the versions that an op reads, each once."""
    if aside or len(places) > _FEW:
        return list(dict.fromkeys(place.version for k, place in enumerate(places) if not aside >> k & 1))
    found: list[Version] = []
    for place in places:
        if place.version not in found:
            found.append(place.version)
    return found


def _blank_again(made: torch.Tensor, ns: int) -> Call:
    """Make bytes without values again: that takes no tensor, whatever the first run took its sizes from."""
    layout = made.size(), made.stride()
    return Call(torch.ops.aten.empty_strided.default, layout, {"dtype": made.dtype}, ns)


assert KEYS == 0
