"""Compare the first run of an executable with the captured graph without a plan.

Idea        Each part of a call is followed by a run of the same graph in base order, with nothing
            recomputed, from what the call was given and from the same random state.
Guarantee   A part passes if its outputs, what it changed in place and the random state have the bits of
            the unplanned graph's; where stretches run fused, values within a tolerance.
Complexity  One unplanned run per part, with its bytes: the budget does not hold for them, and nothing of
            them is observed.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from tightrope.core import Graph, VerificationError
from tightrope.fuse.tolerance import WHOLE_STEP, difference
from tightrope.lower import lower
from tightrope.plan import base_schedule
from tightrope.price.device import device_named, random_state, set_random_state
from tightrope.run.execute.check import digest
from tightrope.run.execute.emit import emit
from tightrope.run.ledger.accounts import Accounts


@dataclass(frozen=True)
class _Saved:
    """The bytes behind a tensor, and the tensor for its looks."""

    bytes: "np.ndarray[Any, Any]"
    like: torch.Tensor


@dataclass
class _Call:
    """What one call was given, part by part, and the random state before each."""

    parts: list[int] = field(default_factory=list)
    given: list[list[Any]] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)


class Reference:
    """The unplanned twin of one execution.

    Attributes:
        num_compared: outputs and changed inputs compared so far.
    """

    def __init__(self, graph: Graph, accounts: Accounts, *, tolerant: bool = False) -> None:
        self.graph, self.accounts, self.tolerant = graph, accounts, tolerant
        self.num_compared, self.device = 0, device_named(graph.environment)
        self._code = emit(graph, lower(graph, base_schedule(graph)))
        self._changed = {storage for op in graph.ops for storage in op.mutates}
        self._calls: dict[int, _Call] = {}
        self._live: list[Any] = []

    def __str__(self) -> str:
        return (
            f"{self.num_compared} outputs, gradients and changed buffers and the random state equal those of "
            f"the captured graph without a plan, {'within a tolerance' if self.tolerant else 'bit for bit'}"
        )

    def before(self, part: int, given: list[Any]) -> None:
        """Note what a part is given."""
        call = self._calls.setdefault(self._call_of(part), _Call())
        call.parts.append(part)
        call.given.append(self._saved(part, given))
        call.states.append(random_state(self.device))
        self._live = [given[at] for at in self._changed_inputs(part)]

    def after(self, part: int, outputs: list[Any]) -> None:
        """Run the unplanned graph up to the same place and compare.

        Raises:
            VerificationError: says what differs.
        """
        found = [self._noted(value) for value in [*outputs, *self._live]]
        self._live = []
        end = random_state(self.device)
        call = self._calls[self._call_of(part)]
        try:
            with self.accounts.aside(), torch.no_grad():
                wanted = self._run(call)
                same = [_same(one, two) for one, two in zip(wanted, found, strict=True)]
                del wanted
            same_state = torch.equal(random_state(self.device), end)
        finally:
            set_random_state(end, self.device)
        if not all(same):
            position = same.index(False)
            kind = "output" if position < len(outputs) else "changed input"
            number = position if position < len(outputs) else position - len(outputs)
            raise VerificationError(
                f"{kind} {number} of part {part} differs from the captured graph without a plan. Nothing "
                f"was returned. {_TOLERANT if self.tolerant else _EXACT}"
            )
        if not same_state:
            raise VerificationError(
                f"the random state after part {part} differs from that of the captured graph without a plan."
            )
        self.num_compared += len(found)

    def _noted(self, value: Any) -> Any:
        return value if self.tolerant and isinstance(value, torch.Tensor) else digest(value)

    def _run(self, call: _Call) -> list[Any]:
        kept: list[Any] = []
        found: list[Any] = []
        for part, given, state in zip(call.parts, call.given, call.states, strict=True):
            set_random_state(state, self.device)
            inputs = self._restored(given)
            changed = [inputs[at] for at in self._changed_inputs(part)]
            outputs, kept = self._code.parts[part](kept, inputs)
            found = [self._noted(value) for value in [*outputs, *changed]]
            del outputs
        return found

    def _call_of(self, part: int) -> int:
        return self.graph.parts[part].call if self.graph.parts else 0

    def _changed_inputs(self, part: int) -> list[int]:
        inputs = self.graph.parts[part].inputs if self.graph.parts else ()
        return [at for at, item in enumerate(inputs) if item.view and item.view.base in self._changed]

    def _saved(self, part: int, given: list[Any]) -> list[Any]:
        """What is given, with bytes outside torch's memory in place of what the graph changes."""
        storages: dict[int, np.ndarray[Any, Any]] = {}
        result = list(given)
        for at in self._changed_inputs(part):
            tensor = given[at].detach()
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                storages[storage.data_ptr()] = whole.cpu().numpy().copy()
            result[at] = _Saved(storages[storage.data_ptr()], tensor)
        return result

    def _restored(self, saved: list[Any]) -> list[Any]:
        """Tensors with the saved bytes; what shared memory shares it again."""
        storages: dict[int, torch.UntypedStorage] = {}
        result = list(saved)
        for at, item in enumerate(saved):
            if isinstance(item, _Saved):
                if id(item.bytes) not in storages:
                    copied = torch.from_numpy(item.bytes).to(item.like.device, copy=True)
                    storages[id(item.bytes)] = copied.untyped_storage()
                like = item.like
                made = torch.empty(0, dtype=like.dtype, device=like.device)
                result[at] = made.set_(
                    storages[id(item.bytes)], like.storage_offset(), like.shape, like.stride()
                )
        return result


_EXACT: Final = (
    "An op that is not deterministic may be the cause: try torch.use_deterministic_algorithms(True)."
)
_TOLERANT: Final = (
    "Fused stretches, and losses in chunks of rows, round otherwise than the graph, and their rounding may "
    "add up, above all where terms cancel, as in a gradient that is zero but for rounding. For equal bits, "
    'leave out fuse=True, and give a step chunk=False; verify="first" compares fused stretches one by one.'
)


def _same(one: Any, two: Any) -> bool:
    """Compare digests, or tensors within the tolerance of a step whose stretches run fused."""
    if isinstance(one, torch.Tensor):
        return difference(two.detach(), one.detach()) <= WHOLE_STEP
    return bool(one == two)
