"""Say in bytes on the device why no plan fits, and which budget would do."""

from dataclasses import dataclass

from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope.run.room import CAPTURE_SLACK, RESERVE


@dataclass(frozen=True)
class Refusal:
    """What stands beside a plan that did not fit.

    Attributes:
        budget: asked for.
        others: bytes of everything that is no part of the plan, `RESERVE` included.
        room: bytes that were left free for code between forward and backward, not in ``others``.
        wanted: bytes that should be.
        num_waiting: forwards that hold memory for a backward that did not run.
        gradients: bytes of gradients that may stay until the next step, not in ``others``.
        state: bytes of optimizer state that may come, not in ``others``.
        grown: bytes held now and not when the step was planned first.
    """

    budget: Bytes
    others: Bytes
    room: Bytes = 0
    wanted: Bytes = 0
    num_waiting: int = 0
    gradients: Bytes = 0
    state: Bytes = 0
    grown: Bytes = 0

    def restated(self, error: InfeasibleError) -> InfeasibleError:
        """Restate the planner's numbers: other holders of memory included."""
        found = error.smallest_found
        if found is not None:
            found += self.others + CAPTURE_SLACK + self.wanted
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
            later = self.gradients + self.state
            hint = f"Try budget={found + later}, a smaller batch or a shorter sequence."
            if self.wanted:
                hint += f" Of it, {format_bytes(self.wanted)} are for a loss outside the model."
            if self.state:
                hint += (
                    f" Of it, {format_bytes(later)} are for gradients that stay until the next step and the "
                    "state of AdamW: less will do for an optimizer that holds less."
                )
            elif later:
                hint += f" Of it, {format_bytes(later)} are for gradients that stay until the next step."
        if self.grown:
            hint += (
                f" {format_bytes(self.grown)} more are held than before the first step: optimizer state, "
                "gradients, and tensors that the loop keeps."
            )
        if self.num_waiting:
            hint += (
                f" {self.num_waiting} earlier forwards still hold what their backward needs: run it, drop "
                "their outputs, or call the model under torch.no_grad()."
            )
        return hint
