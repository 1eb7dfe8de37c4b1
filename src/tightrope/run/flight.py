"""Values of a step under way: the forward in the air, what a part returned, prices measured anew."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tightrope.core import Bytes
from tightrope.native.allocator import Divergence
from tightrope.price.measure import Measured
from tightrope.price.store import PriceStore
from tightrope.run.chosen import Chosen


@dataclass
class Flight:
    """A forward whose backward has yet to come.

    Attributes:
        chosen: the plan that the forward followed.
        kept: tensors that the backward needs; None when it ran and they are gone.
        versions: of those that the user can reach, as the forward left them.
        arena: leased, or None.
        reached: allocations served as planned so far, -1 after a divergence.
        held: live bytes that the forward left.
        peak: live bytes of the forward at its peak.
        charged: bytes held by everything when the forward returned.
        num_backwards: that ran.
    """

    chosen: Chosen
    kept: list[Any] | None
    versions: list[int]
    arena: int | None
    reached: int
    held: Bytes
    peak: Bytes
    charged: Bytes
    num_backwards: int = 0
    release: Callable[["Flight"], None] = field(default=lambda _: None)

    def land(self) -> None:
        """Give the arena back, once."""
        release, self.release = self.release, lambda _: None
        release(self)

    def __del__(self) -> None:
        self.land()


class Replayed(NamedTuple):
    """What a part returned, allocations served as planned (-1 = it diverged), and the divergence."""

    result: Any
    reached: int
    divergence: Divergence | None = None


class FreshPrices(PriceStore):
    """Prices that are measured again, whatever the disk says, and then replace what it says."""

    def __init__(self, env: tuple[tuple[str, str], ...]) -> None:
        super().__init__(env)
        self._new: set[str] = set()

    def get(self, key: str) -> Measured | None:
        """Look up a price measured since this store was made."""
        return super().get(key) if key in self._new else None

    def put(self, key: str, price: Measured) -> None:
        """Keep a new price until `save`."""
        self._new.add(key)
        super().put(key, price)
