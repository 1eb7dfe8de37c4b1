"""Logs of eager steps: what ran, on which storages, for how long, and when each was let go.

Storages are numbered in any order; one that is not outside is created by one op. Views are storages that
they look into. A mutated storage is among those read.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tightrope.core.units import Bytes, Nanoseconds, StorageId


@dataclass(frozen=True, slots=True)
class LoggedOp:
    """One op as it ran.

    Attributes:
        target: its name.
        ns: its own time.
        reads: storages, in the order of its arguments, without repetition.
        creates: storages of its results.
        mutates: storages that it changes in place; they are among ``reads``.
        temporary: bytes that it allocates and frees while it runs.
        recomputable: whether running it again gives the same results.
    """

    target: str
    ns: Nanoseconds
    reads: tuple[StorageId, ...] = ()
    creates: tuple[StorageId, ...] = ()
    mutates: tuple[StorageId, ...] = ()
    temporary: Bytes = 0
    recomputable: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """The last reference to a storage was dropped."""

    storage: StorageId


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A training step ends."""


LogEvent: TypeAlias = LoggedOp | Released | StepEnd


@dataclass(frozen=True, slots=True)
class EvictionLog:
    """Events over storages.

    Attributes:
        name: of what ran.
        sizes: bytes of every storage.
        outside: whether the arena holds it not: parameters, inputs, state made before.
        events: in the order in which they happened.
    """

    name: str
    sizes: tuple[Bytes, ...]
    outside: tuple[bool, ...]
    events: tuple[LogEvent, ...]

    @property
    def operator_ns(self) -> Nanoseconds:
        """Time of all ops, each run once."""
        return sum(event.ns for event in self.events if isinstance(event, LoggedOp))
