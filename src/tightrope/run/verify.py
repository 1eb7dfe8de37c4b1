"""Compare a planned step with a reference on the same inputs, bit for bit.

The reference is the captured graph without a plan, run node by node by torch's own interpreter,
where its peak fits the budget; else the plan's own steps, watched (`tightrope.run.watched`). Both
run forward and backward from the same inputs, the same generator state and the same tangents (ones
for a loss). Only digests are kept, so that the comparison needs no bytes beyond one step at a time.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from tightrope.capture.program import Program, tensor_of
from tightrope.core import VerificationError

Step = Callable[[list[Any], list[Any]], tuple[list[str], list[str]]]
"""(inputs, tangents) -> digests of the outputs and of the gradients."""


@dataclass(frozen=True)
class Verified:
    """What was compared with what.

    Attributes:
        reference: in words.
        num_outputs: forward outputs compared (losses, outputs, new buffer values).
        num_gradients: gradients compared.
    """

    reference: str
    num_outputs: int
    num_gradients: int

    def __str__(self) -> str:
        return (
            f"{self.num_outputs} outputs and buffers, {self.num_gradients} gradients and the random state "
            f"equal, bit for bit, to {self.reference}"
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
        found.update(raw.numpy().data.cast("B"))
    else:
        for row in dense.unbind(0):
            found.update(digest(row).encode())
    return found.hexdigest()


def made_up_tangents(program: Program) -> list[torch.Tensor]:
    """Tangents for a comparison: ones, which for a scalar loss are the real ones."""
    found = []
    for node in program.placeholders:
        fake = tensor_of(node)
        if str(node.target).startswith("tangents") and isinstance(fake, torch.Tensor):
            size = int(fake.untyped_storage().nbytes())
            storage = torch.UntypedStorage(size, device=fake.device)  # type: ignore[no-untyped-call]
            whole = torch.empty(0, dtype=fake.dtype, device=fake.device).set_(storage).fill_(1)
            found.append(whole.set_(storage, fake.storage_offset(), tuple(fake.shape), tuple(fake.stride())))
    return found


def unplanned_step(program: Program) -> Step:
    """The captured graph, run node by node, each value released after its last use."""

    def step(inputs: list[Any], tangents: list[Any]) -> tuple[list[str], list[str]]:
        given = iter(tangents)
        arguments = [
            next(given) if str(node.target).startswith("tangents") else inputs[position]
            for position, node in enumerate(program.placeholders)
        ]
        results = list(
            torch.fx.Interpreter(program.module, garbage_collect_values=True).run(
                *arguments, enable_io_processing=False
            )
        )
        digests = [digest(value) for value in results]
        split = program.num_forward_outputs
        return digests[:split], digests[split:]

    return step


def verify(
    planned: Step,
    reference: Step,
    reference_name: str,
    inputs: Sequence[Any],
    tangents: Sequence[torch.Tensor],
) -> Verified:
    """Run both from one random state and compare every output, gradient and the final state.

    Raises:
        VerificationError: something differs; the message names the first output.
    """
    start = torch.default_generator.get_state()
    try:
        wanted = reference(list(inputs), list(tangents))
        wanted_state = digest(torch.default_generator.get_state())
        torch.default_generator.set_state(start)
        found = planned(list(inputs), list(tangents))
        found_state = digest(torch.default_generator.get_state())
    finally:
        torch.default_generator.set_state(start)
    for what, left, right in zip(("output", "gradient"), wanted, found, strict=True):
        for position, (a, b) in enumerate(zip(left, right, strict=True)):
            if a != b:
                raise VerificationError(
                    f"{what} {position} of the planned step differs from {reference_name}. Nothing was "
                    "returned. An op that is not deterministic may be the cause: try "
                    "torch.use_deterministic_algorithms(True)."
                )
    if wanted_state != found_state:
        raise VerificationError(f"the random state after the planned step differs from {reference_name}.")
    return Verified(reference_name, len(wanted[0]), len(wanted[1]))
