"""Compare fused stretches with their ops, on the values of a step while it runs.

Idea        Every distinct stretch is run once more op by op, from the same inputs, where that many bytes are
            free of the budget. A thread of its own runs it, so that the planned addresses of the step are
            not used, and the observed peak of the step is without it.
Guarantee   A stretch that was compared is equal within `tightrope.fuse.tolerance`, or raises.
Complexity  One run of each distinct stretch.
Gaps        Where the bytes are not free, made-up values must do, on which every stretch was compared.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from tightrope.core import Fused, Graph, VerificationError
from tightrope.fuse.build import Compiled
from tightrope.fuse.program import FusedProgram, program_of
from tightrope.fuse.tolerance import BLOCK, difference, tolerance
from tightrope.fuse.traced import function_of
from tightrope.native.hook.allocator import Allocator


class StretchCheck:
    """State of one run.

    Attributes:
        compared: keys of programs that agreed.
        known: keys of all programs.
    """

    def __init__(self, graph: Graph, allocator: Allocator | None) -> None:
        self.graph, self.allocator = graph, allocator
        self.compared: set[str] = set()
        self.known: set[str] = set()

    def __str__(self) -> str:
        if not self.known:
            return ""
        text = f"{len(self.known)} distinct fused stretches equal their ops within a tolerance"
        if self.compared == self.known:
            return f"{text}, on the values of a step"
        return (
            f"{text}, {len(self.compared)} of them on the values of a step, for the others there was no room"
        )

    def wrap(self, fused: Fused, function: Compiled) -> Compiled:
        """Put the comparison around the function of a stretch."""
        program, _, _ = program_of(fused, threads=torch.get_num_threads())
        self.known.add(program.key)

        def checked(given: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            kept = list(given)
            found = function(given)
            if self.allocator is not None and self._has_room(program, self.allocator):
                try:
                    with self.allocator.beside_live_peak():
                        self._compare(fused, program, kept, found)
                    self.compared.add(program.key)
                except torch.OutOfMemoryError:  # the estimate was too low: see `__str__`
                    pass
            return found

        return checked

    def _has_room(self, program: FusedProgram, allocator: Allocator) -> bool:
        if program.key in self.compared:
            return False
        made = [result.view for call in program.calls for result in call.results]
        need = 2 * sum(view.end + 2 * self.graph.alignment for view in made)
        need += 64 * BLOCK  # values in float64, and what stands between them
        return allocator.limit is None or allocator.stats().charged + need <= allocator.limit

    def _compare(
        self, fused: Fused, program: FusedProgram, given: list[torch.Tensor], found: Sequence[torch.Tensor]
    ) -> None:
        def run() -> list[float]:
            with torch.no_grad():
                wanted = function_of(program)(given)
                return [difference(one, two) for one, two in zip(found, wanted, strict=True)]

        with ThreadPoolExecutor(1, "tightrope stretch check") as own:
            apart = own.submit(run).result()
        worst = max(range(len(apart)), key=lambda k: apart[k], default=-1)
        if worst >= 0 and apart[worst] > 1:
            made = [(run.op, r.view) for run in fused.runs for r in run.results if r.view.base >= 0]
            op, view = made[worst]
            allowed = tolerance(found[worst].dtype)
            raise VerificationError(
                f"{self.graph.op(op).describe()} runs fused with {len(fused.runs) - 1} others. Its "
                f"{view.dtype} values differ from those of its ops by {apart[worst] * allowed:.1e} of the "
                f"largest one; {allowed:.1e} is allowed. Nothing was returned: use fuse=False."
            )
