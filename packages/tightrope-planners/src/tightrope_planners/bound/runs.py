"""A sequence of runs in any order within a stage, its byte profile, and runs that the bytes allow to skip.

The post-pass of Kumar et al. (NeurIPS 2019): walk over the re-runs and leave out every one whose copies
may as well be held from before, as long as the bytes stay within the limit.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tightrope.core import Bytes, OpId, StorageId
from tightrope.plan.model import Model, Pair, made_by


@dataclass(slots=True)
class _Copy:
    """One copy of a storage: the position that makes it and those that read it, ascending."""

    storage: StorageId
    made: int
    readers: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.readers[-1] if self.readers else self.made


class Runs:
    """All runs of a step, first runs included, with live bytes per run."""

    def __init__(self, model: Model, pairs: Sequence[Pair]) -> None:
        self.model = model
        self.ops: list[OpId] = []
        self.again: list[Pair | None] = []
        stages: dict[int, list[Pair]] = {}
        for pair in pairs:
            stages.setdefault(pair[0], []).append(pair)
        for op in range(len(model.need)):
            for pair in stages.get(op, ()):
                self.ops.append(pair[1])
                self.again.append(pair)
            self.ops.append(op)
            self.again.append(None)
        self.alive = [True] * len(self.ops)
        self.copies: list[list[_Copy]] = [[] for _ in model.producer]
        self.profile = np.zeros(len(self.ops) + 1, dtype=np.int64)
        self._read_and_make()

    @property
    def peak(self) -> Bytes:
        """Largest number of live bytes at any run."""
        return int(self.profile[:-1][self.alive].max(initial=0))

    def pairs(self) -> tuple[Pair, ...]:
        """List the re-runs that are left, in order."""
        return tuple(pair for pair, alive in zip(self.again, self.alive, strict=True) if pair and alive)

    def skip(self, limit: Bytes) -> None:
        """Leave out re-runs, the longest first, while the peak stays within ``limit`` or does not rise."""
        most = max(limit, self.peak)
        again = [k for k, pair in enumerate(self.again) if pair and self.alive[k]]
        for position in sorted(again, key=lambda k: (-self.model.again_ns[self.ops[k]], -k)):
            self._try(position, most)

    def _reads(self, position: int) -> tuple[StorageId, ...]:
        op = self.ops[position]
        return self.model.again_reads[op] if self.again[position] else self.model.reads[op]

    def _read_and_make(self) -> None:
        model, created = self.model, made_by(self.model)
        for position, op in enumerate(self.ops):
            for storage in self._reads(position):
                self.copies[storage][-1].readers.append(position)
            made = model.again_creates[op] if self.again[position] else created[op]
            for storage in made:
                self.copies[storage].append(_Copy(storage, position))
            self.profile[position] += model.again_need[op] if self.again[position] else model.need[op]
        for storage, copies in enumerate(self.copies):
            if model.at_end[storage]:
                copies[-1].readers.append(len(self.ops))
            for copy in copies:
                self.profile[copy.made + 1 : copy.last + 1] += model.size[storage]

    def _try(self, position: int, most: Bytes) -> None:
        """Leave out one re-run where its copies can be held from before."""
        op = self.ops[position]
        pieces: list[tuple[StorageId, int, int]] = []
        extra = np.zeros(0, dtype=np.int64)
        begin = position
        for storage in self.model.again_creates[op]:
            slot = self._slot(storage, position)
            if self.copies[storage][slot].readers:
                last = self.copies[storage][slot - 1].last
                pieces.append((storage, slot, last))
                begin = min(begin, last + 1)
        extra = np.zeros(position + 1 - begin, dtype=np.int64)
        for storage, _, last in pieces:
            extra[last + 1 - begin :] += self.model.size[storage]
        span = self.profile[begin:position] + extra[:-1]
        if span[np.asarray(self.alive[begin:position], dtype=bool)].max(initial=0) > most:
            return
        self.profile[begin : position + 1] += extra
        self._remove(position, op)

    def _remove(self, position: int, op: OpId) -> None:
        self.alive[position] = False
        for storage in self.model.again_creates[op]:
            slot = self._slot(storage, position)
            copy = self.copies[storage].pop(slot)
            self.copies[storage][slot - 1].readers += copy.readers
        for storage in self._reads(position):
            copy = self.copies[storage][self._slot(storage, position) - 1]
            readers = copy.readers
            del readers[bisect_left(readers, position)]
            if copy.last < position:
                self.profile[copy.last + 1 : position + 1] -= self.model.size[storage]

    def _slot(self, storage: StorageId, position: int) -> int:
        return bisect_left(self.copies[storage], position, key=lambda copy: copy.made)
