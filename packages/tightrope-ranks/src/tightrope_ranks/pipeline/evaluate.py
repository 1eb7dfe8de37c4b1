"""Forwards alone, over all ranks.

Idea        Micro-batches go through the stages in groups of as many as there are ranks, so that all ranks
            have something to do. A message says its shape first: a batch may have any number of rows.
Guarantee   Nothing of it stays in the stages of training steps. All ranks follow one order of (group, stage,
            micro-batch), and only receives wait, so none waits for ever.
Complexity  At most two groups of messages are kept at a time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from tightrope_ranks.values.ranks import StageWork

_DTYPES: Final = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_DIMS: Final = 14


def forward_only(
    work: StageWork,
    stages: Mapping[int, torch.nn.Module],
    inputs: Sequence[torch.Tensor],
    count: int,
    group: Any,
    device: torch.device,
) -> list[torch.Tensor]:
    """Run the forwards of this rank.

    Args:
        work: whose stages these are.
        stages: of this rank, ascending.
        inputs: the batch, where stage 0 is.
        count: of micro-batches, the same on all ranks.
        group: of the ranks.
        device: of the messages.

    Returns:
        Outputs of the micro-batches, where the last stage is.
    """
    parts = list(zip(*(one.tensor_split(count) for one in inputs), strict=True)) if 0 in stages else []
    values: dict[tuple[int, int], torch.Tensor] = {}
    sent: list[list[tuple[Any, torch.Tensor]]] = [[], []]
    for begin in range(0, count, work.num_ranks):
        for stage, module in stages.items():
            for micro in range(begin, min(count, begin + work.num_ranks)):
                if not stage:
                    given = parts[micro]
                elif stage - 1 in stages:
                    given = (values.pop((stage - 1, micro)),)
                else:
                    given = (_receive(work.owners[stage - 1], group, device),)
                made = module(*given)
                if stage + 1 == len(work.owners) or stage + 1 in stages:
                    values[stage, micro] = made
                else:
                    sent[-1] += _send(made, work.owners[stage + 1], group)
            _let_go(module)
        for waiting, _ in sent.pop(0):
            waiting.wait()
        sent.append([])
    for waiting, _ in sent[0]:
        waiting.wait()
    last = len(work.owners) - 1
    return [values[last, micro] for micro in range(count)] if last in stages else []


def _send(tensor: torch.Tensor, peer: int, group: Any) -> list[tuple[Any, torch.Tensor]]:
    shape = list(tensor.shape)
    words = [_DTYPES.index(tensor.dtype), len(shape), *shape, *[0] * (_DIMS - len(shape))]
    both = (torch.tensor(words, dtype=torch.int64, device=tensor.device), tensor.contiguous())
    return [(dist.isend(one, group=group, group_dst=peer), one) for one in both]


def _receive(peer: int, group: Any, device: torch.device) -> torch.Tensor:
    head = torch.empty(2 + _DIMS, dtype=torch.int64, device=device)
    dist.recv(head, group=group, group_src=peer)
    dtype, dims, *shape = head.tolist()
    made = torch.empty(shape[:dims], dtype=_DTYPES[dtype], device=device)
    dist.recv(made, group=group, group_src=peer)
    return made


def _let_go(module: torch.nn.Module) -> None:
    """Drop parameters that replicas divide."""
    for one in module.modules():
        if isinstance(one, FSDPModule):
            one.reshard()
