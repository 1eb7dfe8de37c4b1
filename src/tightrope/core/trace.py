"""Traces: what happened, or what a plan says will happen, in one schema."""

from typing import Literal

import msgspec

from tightrope.core.graph import SCHEMA_VERSION
from tightrope.core.units import Bytes, Nanoseconds, Offset, OpId, StorageId


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One run of one op, half-open in time."""

    start: Nanoseconds
    end: Nanoseconds
    op: OpId
    name: str = ""


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """One allocation: alive in ``[start, end)``, counted in allocation events of the step."""

    bytes: Bytes
    start: int
    end: int
    offset: Offset = -1
    storage: StorageId = -1


class Trace(msgspec.Struct, frozen=True):
    """Events and buffers of one step.

    Attributes:
        source: ``forecast`` (from a plan) or ``observed`` (from a run).
        buffers: allocations in the order in which they began.
        events: op runs, may be empty.
        num_events: length of the allocation timeline (allocations and releases).
    """

    source: Literal["forecast", "observed"]
    buffers: tuple[Buffer, ...]
    events: tuple[Event, ...] = ()
    num_events: int = 0
    schema: Literal[1] = SCHEMA_VERSION

    def profile(self) -> list[Bytes]:
        """Live bytes after each allocation event (sizes rounded up to 64 bytes)."""
        change = [0] * (self.num_events + 1)
        for buffer in self.buffers:
            size = -(-buffer.bytes // 64) * 64
            change[buffer.start] += size
            if buffer.end < self.num_events:
                change[buffer.end] -= size
        total, profile = 0, []
        for delta in change[: self.num_events]:
            total += delta
            profile.append(total)
        return profile

    @property
    def peak(self) -> Bytes:
        """Largest number of live bytes."""
        return max(self.profile(), default=0)
