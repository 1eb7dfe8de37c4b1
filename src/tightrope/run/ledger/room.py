"""What is left of a budget for a plan: a pure function of what was asked for and observed."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tightrope.core import Bytes, Forecast, format_bytes
from tightrope.core.ledger import Ledger, Row, When
from tightrope.plan.kept import SPARE
from tightrope.run.ledger.headroom import Headroom

GAPS: Final = 32
"""Gaps take less than this part of an arena in which everything stays, as a rule."""
RESERVE: Bytes = 65536
"""Held back for the runtime itself: copies of the generator's state (5,056 bytes each) that are made
while a graph is captured."""
CAPTURE_SLACK: Bytes = 16384
"""A capture leaves small tensors behind: constants of the graph, caches (9 KiB seen). They come out of
the reserve, and a budget that a refusal names has room for them."""
FIRST_TRY: Final = 8
"""Multiple of what is held already that is named where nothing else is known."""
HELD: Final = "held by the process"
HIDDEN: Final = "hidden in kernels"
"""Names of the rows of everything that is held now, and of what kernels take behind the allocator."""


@dataclass(frozen=True)
class Room:
    """The bytes of a budget and who has them.

    Attributes:
        budget: total bytes asked for.
        held: by everything but the plan, now.
        foreseen: that the caller will hold before the next step: optimizer state that is not there yet.
        update: that it will hold in its first update beside all that: gradients, and what an update makes.
        headroom: beside the plan, for the caller's code between its parts.
        left_behind: bytes of the reserve that a capture took; they are counted in ``held``.
        hidden: held back for what kernels take behind the allocator.
        asked: the budget as the user wrote it, where that is a percentage.
        whole: bytes that 100 % stands for; 0 = the budget is in bytes.
    """

    budget: Bytes
    held: Bytes
    foreseen: Bytes = 0
    update: Bytes = 0
    headroom: Headroom = field(default_factory=Headroom)
    left_behind: Bytes = 0
    hidden: Bytes = 0
    asked: str = ""
    whole: Bytes = 0

    def ledger(self) -> Ledger:
        """Write the bytes down as rows, headroom aside."""
        return Ledger(self.budget, asked=self.asked, whole=self.whole).plus(
            Row(HELD, self.held),
            Row("optimizer state", self.foreseen, "forecast", "not there yet"),
            Row("gradients and update", self.update, "forecast", "the optimizer's", When.UPDATE),
            Row(HIDDEN, self.hidden, "measured", "outside torch's allocator"),
            Row("runtime reserve", RESERVE - self.left_behind),
        )

    @cached_property
    def available(self) -> Bytes:
        """Bytes for a plan and the headroom together.

        >>> Room(1000000, 100000, foreseen=50000).available
        784464
        """
        return self.ledger().room()

    @property
    def fits_update(self) -> bool:
        """Tell whether there is room for the first update of the optimizer, when no step runs.

        >>> Room(1000000, 100000, foreseen=50000, update=784464).fits_update
        True
        """
        return self.ledger().fits_update()

    def fits(self, forecast: Forecast, beside: Bytes) -> bool:
        """Tell whether a plan fits with so many bytes free beside it."""
        return forecast.arena + forecast.outside <= self.available - beside

    def resembles(self, planned: "Room", beside: Bytes, forecast: Forecast, wanted: Bytes) -> bool:
        """Tell whether a plan made for another room, with ``beside`` left free, wastes little of this.

        As long as nothing was seen of the caller's code, what was left free for it is not waste; then
        ``wanted`` is what is to be left free now.
        """
        wanted = wanted if self.headroom.seen else beside
        more = self.available - wanted - (planned.available - beside)
        return more * SPARE <= forecast.arena


def cause_of(before: Room, now: Room, beside: Bytes, forecast: Forecast, wanted: Bytes) -> str:
    """Say why a plan with ``wanted`` free is made after another one, which had ``beside`` free."""
    more = now.held + now.foreseen - before.held - before.foreseen
    if now.fits(forecast, wanted):
        spare = now.available - wanted - (before.available - beside)
        return f"{format_bytes(spare)} were unused"
    if wanted - beside > max(more, 0):
        return f"code between the parts of a step takes {format_bytes(wanted)}, not {format_bytes(beside)}"
    if more > 0:
        return f"{format_bytes(more)} more are held: optimizer state, gradients, tensors that the loop keeps"
    less = before.available - now.available
    return f"{format_bytes(less)} less are left: kernels were seen to take more, or the budget fell"
