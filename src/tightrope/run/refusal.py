"""Say in bytes on the device why no plan fits, and which budget would do.

One number is named, and it holds the whole training step: the plan and what stands beside it, code between
forward and backward, and the first update of the optimizer, whichever takes most.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope.run.room import CAPTURE_SLACK, RESERVE

_SCALARS: Final[Bytes] = 1024


def best_of(refused: Mapping[int, InfeasibleError], why_whole: str = "") -> InfeasibleError:
    """Find the refusal with the smallest budget, and bounds that hold for every number of chunks.

    Args:
        refused: number of chunks -> why no plan fits; 1 = the whole graph.
        why_whole: what keeps it from more chunks.
    """
    num, best = min(refused.items(), key=lambda item: (item[1].smallest_found or sys.maxsize, item[0]))
    others = [str(count) if count > 1 else "1 (whole)" for count in refused if count != num]
    bound = min(error.lower_bound for error in refused.values())
    said = str(best)
    if why_whole:
        said += f" The loss is not split into chunks of rows: {why_whole}."
    if others:
        said += (
            f" These are numbers for the loss in {num} chunks of rows; in {', '.join(others)} it is proved "
            f"to need at least {format_bytes(bound)}."
        )
    return InfeasibleError(  # a new one: what raises it keeps the others
        said,
        asked=best.asked,
        smallest_found=best.smallest_found,
        lower_bound=bound,
        op=best.op,
    )


@dataclass(frozen=True)
class Refusal:
    """What stands beside a plan that did not fit.

    Attributes:
        budget: asked for.
        others: bytes of everything that is no part of the plan, `RESERVE` included.
        persistent: bytes of the graph's own that the caller holds, not in ``others``.
        beside: bytes to leave free while the plan runs, for code between forward and backward.
        between: bytes that such code takes when no part runs, with the outputs; 0 = not seen yet.
        update: bytes of gradients that are not there yet, and of what the first update makes.
        num_waiting: forwards that hold memory for a backward that did not run.
        gradients: bytes of gradients that may stay until the next step, not in ``others``.
        outputs: bytes of outputs that may.
        assumed: bytes of the state of AdamW, where no optimizer is known.
        grown: bytes held now and not when the step was planned first.
        least: a budget that is needed anyway.
        in_pieces: whether the model is a sequence of graphs, of which later ones were not seen.
        returns: whether control goes to the caller between forward and backward.
    """

    budget: Bytes
    others: Bytes
    persistent: Bytes
    beside: Bytes = 0
    between: Bytes = 0
    update: Bytes = 0
    num_waiting: int = 0
    gradients: Bytes = 0
    outputs: Bytes = 0
    assumed: Bytes = 0
    grown: Bytes = 0
    least: Bytes = 0
    in_pieces: bool = False
    returns: bool = True

    def restated(self, error: InfeasibleError) -> InfeasibleError:
        """Restate the planner's numbers: other holders of memory included."""
        found = None if error.smallest_found is None else self.needed(error.smallest_found)
        bound = error.lower_bound + self.others - RESERVE
        best = (
            "no feasible budget was found"
            if found is None
            else f"smallest feasible found {format_bytes(found)} ({found} bytes)"
        )
        return InfeasibleError(
            f"asked {format_bytes(self.budget)} ({self.budget} bytes); {best}; proved: no plan of this graph "
            f"needs less than {format_bytes(bound)}{self._held(bound)}. "
            f"The op that sets the bound: {error.op}. {self._hint(found)}",
            asked=self.budget,
            smallest_found=found,
            lower_bound=bound,
            op=error.op,
        )

    def _held(self, bound: Bytes) -> str:
        held = self.others - RESERVE
        return f", of which the process holds {format_bytes(held)} beside it" if held >= bound / 2 else ""

    def needed(self, plan: Bytes) -> Bytes:
        """The budget for a plan of so many bytes in all, in a loop of any order."""
        return max(self.least, self._budget(plan, self.gradients) + CAPTURE_SLACK)

    def dropping(self, plan: Bytes) -> Bytes:
        """The same in a loop that drops its gradients before each forward.

        Less than that is refused, but for 1 KiB for scalars that a loop keeps, such as the last loss, and
        for what a capture takes of the reserve, at most `CAPTURE_SLACK`.
        """
        return max(self.least, self._budget(plan, 0) + _SCALARS)

    def _budget(self, plan: Bytes, gradients: Bytes) -> Bytes:
        kept = self.outputs + self.assumed
        most = max(
            plan + self.beside + gradients,
            self.persistent + self.between + gradients,
            self.persistent + self.update,
        )
        return self.others + kept + most

    def _hint(self, found: Bytes | None) -> str:
        hint = "Try a smaller batch."
        if found is not None:
            hint = f"Try budget={found}, a smaller batch or a shorter sequence."
            if self.between:
                hint += f" Code between forward and backward was seen to take {format_bytes(self.between)}."
            elif self.beside:
                hint += (
                    f" Of it, {format_bytes(self.beside)} are for a loss outside the model: a guess, as none "
                    "was seen yet."
                )
            if self.assumed:
                hint += (
                    f" Of it, {format_bytes(self.assumed)} are for the state of AdamW, as no optimizer "
                    "was found: less will do for one that holds less."
                )
            if self.gradients:
                hint += (
                    f" Of it, {format_bytes(self.gradients)} are for gradients that may stay until the next "
                    "step."
                )
            if self.in_pieces and self.least == found:
                hint += " By the shapes it is enough for all graphs of the model; less may do."
            elif self.in_pieces:
                hint += " Graphs of the model that come after this one were not seen yet, and may need more."
        if self.grown:
            hint += (
                f" {format_bytes(self.grown)} more are held than before the first step: optimizer state, "
                "gradients, and tensors that the loop keeps."
            )
        elif found is not None and self.returns and not self.num_waiting:
            hint += " This is for one forward before each backward."
        if self.num_waiting:
            hint += (
                f" {self.num_waiting} earlier forwards still hold what their backward needs: run it, drop "
                "their outputs, or call the model under torch.no_grad()."
            )
        return hint
