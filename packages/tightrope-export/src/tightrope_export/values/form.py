"""What is exported, what it is promised to take, and what a run of it showed."""

from typing import Literal, NamedTuple, TypeAlias

from tightrope.core import Bytes, Nanoseconds

Target: TypeAlias = Literal["sac", "hf", "blocks"]


class AgainRegion(NamedTuple):
    """A module that is computed again in the backward.

    Attributes:
        path: of the module.
        saved: results that it keeps all the same: (op, number among those of that name in one call).
    """

    path: str
    saved: tuple[tuple[str, int], ...] = ()


Form: TypeAlias = tuple[AgainRegion, ...]
"""Modules that are computed again, none inside another, by path."""


class FormPromise(NamedTuple):
    """What a form takes.

    Attributes:
        peak: most bytes above what the caller holds.
        persistent: bytes that the caller holds.
        ns: time of the step.
        base_ns: time of the step that computes everything once.
        again: (op, times) for what is computed again.
        held: bytes above what the caller holds when the backward begins.
        saved: tensors that autograd saves outside of what runs again, its arguments included.
    """

    peak: Bytes
    persistent: Bytes
    ns: Nanoseconds
    base_ns: Nanoseconds
    again: tuple[tuple[str, int], ...]
    held: Bytes = 0
    saved: int = 0

    @property
    def total(self) -> Bytes:
        """All bytes."""
        return self.peak + self.persistent

    @property
    def ratio(self) -> float:
        """Time of the step over that of the one that computes everything once."""
        return self.ns / max(self.base_ns, 1)


class Shown(NamedTuple):
    """What a run of a written file showed.

    Attributes:
        peak: most bytes of the allocator above those before the step.
        again: (op, times) for what ran more often than without the file.
        saved: tensors that autograd saved, as hooks outside of the modules saw it.
        differs: names of losses, gradients and buffers whose bits differ from the plain model's.
    """

    peak: Bytes
    again: tuple[tuple[str, int], ...]
    saved: int
    differs: tuple[str, ...]
