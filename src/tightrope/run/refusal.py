"""Say in bytes on the device why no plan fits, and which budget would do."""

from dataclasses import dataclass

from tightrope.core import Bytes, InfeasibleError, format_bytes

RESERVE: Bytes = 65536
"""Held back for the runtime itself: copies of the generator's state (5,056 bytes each) that are made
while a graph is captured and while the first step is checked."""
_CAPTURE_SLACK: Bytes = 16384
"""A first capture leaves some small tensors behind (9 KiB seen); a second try must still fit."""


@dataclass(frozen=True)
class Refusal:
    """What stands beside a plan that did not fit.

    Attributes:
        budget: asked for.
        others: bytes of everything that is no part of the plan, `RESERVE` included.
        beside: bytes to leave free for code between forward and backward, not in ``others``.
        num_waiting: forwards that hold memory for a backward that did not run.
        trained: bytes of parameters whose optimizer may have no state yet.
    """

    budget: Bytes
    others: Bytes
    beside: Bytes = 0
    num_waiting: int = 0
    trained: Bytes = 0

    def restated(self, error: InfeasibleError) -> InfeasibleError:
        """Restate the planner's numbers: other holders of memory included."""
        found = error.smallest_found
        if found is not None:
            found += self.others + _CAPTURE_SLACK + self.beside
        bound = error.lower_bound + self.others - RESERVE
        best = (
            "no feasible budget was found"
            if found is None
            else f"smallest feasible found {format_bytes(found)} ({found} bytes)"
        )
        return InfeasibleError(
            f"asked {format_bytes(self.budget)} ({self.budget} bytes); {best}; proved: no plan of this graph "
            f"needs less than {format_bytes(bound)}. The op that sets the bound: {error.op}. "
            f"{self._hint(found)}",
            asked=self.budget,
            smallest_found=found,
            lower_bound=bound,
            op=error.op,
        )

    def _hint(self, found: Bytes | None) -> str:
        if found is None:
            hint = "Try a smaller batch."
        else:
            hint = f"Try budget={found}, a smaller batch or a shorter sequence."
            if self.beside:
                hint += f" Of it, {format_bytes(self.beside)} are for a loss outside the model."
            if self.trained:
                hint += (
                    " Optimizer state that does not exist yet comes on top (AdamW: "
                    f"{format_bytes(2 * self.trained)})."
                )
        if self.num_waiting:
            hint += (
                f" {self.num_waiting} earlier forwards still hold what their backward needs: run it, drop "
                "their outputs, or call the model under torch.no_grad()."
            )
        return hint
