"""The copies of tied parameters on a rank: their gradients are summed over all ranks behind a step."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tightrope.core import TightropeError
from tightrope_ranks.values.ranks import StageWork, Tie


class TiedCopies:
    """A rank's copies of the parameters that stages share.

    Args:
        work: whose ties they are.
        ties: numbers of those that the rank sums.
        stages: of the rank.
        group: of the ranks.

    Raises:
        TightropeError: the stages are not those of the plan.
    """

    def __init__(
        self, work: StageWork, ties: Sequence[int], stages: Mapping[int, torch.nn.Module], group: Any
    ) -> None:
        self.group, self.rank = group, dist.get_rank(group)
        own = {stage: list(module.parameters()) for stage, module in stages.items()}
        self.copies: list[tuple[list[int], list[torch.nn.Parameter]]] = []
        for tie in (work.ties[number] for number in ties):
            ranks = list(dict.fromkeys(work.owners[stage] for stage in reversed(tie.stages)))
            found = {id(one): one for one in _copies(tie, own)}
            self.copies.append((ranks, list(found.values())))
        self._refuse_others(own)

    def _refuse_others(self, own: Mapping[int, Sequence[torch.nn.Parameter]]) -> None:
        known = {id(one) for _, copies in self.copies for one in copies}
        users: dict[int, int] = {}
        for stage, parameters in own.items():
            for one in parameters:
                first = users.setdefault(id(one), stage)
                if first != stage and one.requires_grad and id(one) not in known:
                    raise TightropeError(
                        f"stages {first} and {stage} share a parameter of shape {tuple(one.shape)} that the "
                        "plan does not know. Plan with the layers that share it."
                    )

    @contextlib.contextmanager
    def summed(self) -> Iterator[None]:
        """Sum the gradients that come within a ``with`` block, and add them to those from before."""
        before = [[one.grad for one in copies] for _, copies in self.copies]
        for _, copies in self.copies:
            for one in copies:
                one.grad = None
        fine = False
        try:
            yield
            for ranks, copies in self.copies:
                self._sum(ranks, copies)
            fine = True
        finally:
            for (_, copies), earlier in zip(self.copies, before, strict=True):
                for one, grad in zip(copies, earlier, strict=True):
                    if grad is not None:
                        one.grad = grad.add_(one.grad) if fine and one.grad is not None else grad

    def _sum(self, ranks: Sequence[int], copies: Sequence[torch.nn.Parameter]) -> None:
        """Add up from the last stage to the first, then hand the sum to all."""
        with torch.no_grad():
            grads = [one.grad for one in copies if one.grad is not None]
            total = grads[0] if grads else torch.zeros_like(copies[0])
            for grad in grads[1:]:
                total.add_(grad)
            at = ranks.index(self.rank)
            if at:
                came = torch.empty_like(total)
                dist.recv(came, group=self.group, group_src=ranks[at - 1])
                total = came.add_(total)
            if at + 1 < len(ranks):
                dist.send(total, group=self.group, group_dst=ranks[at + 1])
                dist.recv(total, group=self.group, group_src=ranks[-1])
            else:
                for peer in ranks[:-1]:
                    dist.send(total, group=self.group, group_dst=peer)
            for one in copies:
                one.grad = total if one is copies[0] else total.clone()


def _copies(tie: Tie, own: Mapping[int, Sequence[torch.nn.Parameter]]) -> Iterator[torch.nn.Parameter]:
    """List a rank's copies, of which the last stage's comes first."""
    for stage, place in zip(reversed(tie.stages), reversed(tie.places), strict=True):
        if stage in own:
            one = own[stage][place] if place < len(own[stage]) else None
            if one is None or not one.requires_grad or one.numel() * one.element_size() > tie.bytes:
                raise TightropeError(
                    f"parameter {place} of stage {stage} is not {tie.name}, which the plan sums over stages "
                    f"{list(tie.stages)}. Give each stage its layers, in order."
                )
            yield one
