"""Check the first real run of an executable while it runs: no second run, no bytes through torch.

Idea        Every kernel's result must look as the graph says, and whatever is computed again must have
            the bits of its first run. By induction over the instructions, every op then gets the inputs
            that the unplanned step would give it, so every value is the unplanned one.
Guarantee   An op that gives other bits when it runs again, that runs again on inputs that changed or
            were overwritten meanwhile, or that lays its result out otherwise than captured, raises.
            Bytes without values (``empty``) are zeros in this run, so whatever reads them may be compared.
Complexity  One digest per storage and run of a recomputed op.
Gaps        What a kernel computes in its first run is taken as it is; see
            `tightrope.run.execute.reference`. The workspace of an LSTM layer is not compared: oneDNN leaves
            gaps in it that nobody reads.

Fused stretches are compared with their ops, within `tightrope.fuse.tolerance`: every distinct one runs once
more op by op, from the same inputs, where that many bytes are free of the budget. A thread of its own runs
it, so planned addresses are not used. Elsewhere the made-up values must do on which each was compared.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch

from tightrope.capture.typed import dtype_name
from tightrope.core import Executable, Fused, Graph, Run, StorageId, VerificationError, View
from tightrope.fuse.build import Compiled
from tightrope.fuse.program import FusedProgram, program_of
from tightrope.fuse.tolerance import BLOCK, difference, tolerance
from tightrope.fuse.traced import function_of
from tightrope.native.hook.allocator import Allocator
from tightrope.price.kernels import Kernel, bits_of, scratch

_BLANK: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
)
"""Names of ops whose results have no values."""


class RecomputeCheck:
    """Compares what runs again with what was there first.

    Attributes:
        num_again: storages that are computed more than once.
        num_results: results whose layout was compared so far.
        num_compared: digests compared so far.
        stretches: what compares fused stretches.
    """

    def __init__(self, graph: Graph, executable: Executable, allocator: Allocator | None = None) -> None:
        self.graph = graph
        self.stretches = StretchCheck(graph, allocator)
        self.num_results = self.num_compared = 0
        made: Counter[StorageId] = Counter()
        for instruction in executable.instructions:
            if isinstance(instruction, Run):
                made.update(graph.op(instruction.op).creates)
        again = {storage for storage, count in made.items() if count > 1}
        self._again = again - {
            result.view.base
            for op in graph.all_ops()
            for result in op.results
            if result.position in scratch(op.target)
        }
        if any(isinstance(instruction, Fused) for instruction in executable.instructions):
            self._again = set()  # fused and alone, an op may round in another way
        self.num_again = len(self._again)
        self._seen: dict[StorageId, str] = {}

    def wrap(self, run: Run | Fused, kernel: Kernel) -> Kernel:
        """Put the check around the kernel of a run."""
        if isinstance(run, Fused):
            return self.stretches.wrap(run, kernel)
        if not run.results:
            return kernel

        blank = run.target.startswith("aten.") and run.target.split(".")[1] in _BLANK

        def checked(*args: Any, **kwargs: Any) -> Any:
            result = kernel(*args, **kwargs)
            for item, made in zip(run.results, self.graph.op(run.op).results, strict=True):
                tensor = result if item.position < 0 else result[item.position]
                if blank:
                    tensor.zero_()
                self._check(run, tensor, item.view, made.view.base)
            return result

        return checked

    def _check(self, run: Run, tensor: torch.Tensor, view: View, storage: StorageId) -> None:
        self.num_results += 1
        looks = (
            dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(),
            bits_of(tensor),
        )  # fmt: skip
        if looks != (view.dtype, view.shape, view.strides, view.offset, view.bits):
            raise VerificationError(
                f"{self._name(run)} gave a tensor of {looks[:3]}; it was captured and measured as "
                f"{(view.dtype, view.shape, view.strides)}. Nothing was returned: see that no "
                "parameter and no input is given other data while a step runs."
            )
        if storage not in self._again:
            return
        bits = digest(tensor)
        if self._seen.setdefault(storage, bits) != bits:
            raise VerificationError(
                f"{self._name(run)} gave other bits when it ran again. Nothing was returned. An op that is "
                "not deterministic may be the cause: try torch.use_deterministic_algorithms(True)."
            )
        self.num_compared += 1

    def _name(self, run: Run) -> str:
        return self.graph.op(run.op).describe()


class StretchCheck:
    """Compares fused stretches with their ops, on the values of a step.

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


def digest(value: Any) -> str:
    """Hash a tensor's shape, dtype and bits without allocating through torch."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    dense = value.detach()
    order = sorted(range(dense.dim()), key=dense.stride, reverse=True)
    dense = dense.permute(order)
    header = f"{value.dtype}{tuple(value.shape)}{order if not value.is_contiguous() else ''}"
    found = hashlib.blake2b(header.encode(), digest_size=16)
    if dense.is_contiguous():
        raw = dense.view(torch.uint8) if dense.dim() else dense.reshape(1).view(torch.uint8)
        found.update(raw.cpu().numpy().data.cast("B"))
    else:
        for row in dense.unbind(0):
            found.update(digest(row).encode())
    return found.hexdigest()
