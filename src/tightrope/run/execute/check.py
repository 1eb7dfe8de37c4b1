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
"""

import hashlib
from collections import Counter
from typing import Any, Final

import torch

from tightrope.capture.typed import dtype_name
from tightrope.core import Executable, Fused, Graph, Run, StorageId, VerificationError, View
from tightrope.native.hook.allocator import Allocator
from tightrope.price.kernels import Kernel, bits_of, scratch
from tightrope.run.execute.stretch_check import StretchCheck

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
