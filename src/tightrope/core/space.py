"""A memory with addresses of its own."""

import msgspec

from tightrope.core.units import Bytes


class Space(msgspec.Struct, frozen=True):
    """One memory.

    Attributes:
        name: what blocks and messages call it.
        capacity: bytes.
        alignment: allocations in it are charged and placed in multiples of this.
        tier: memory tier of the machine, 0 = the fastest.
        device: torch-style name.
    """

    name: str
    capacity: Bytes
    alignment: Bytes = 1
    tier: int = 0
    device: str = "cpu"
