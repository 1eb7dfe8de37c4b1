"""Gradients that autograd gets while the backward that makes them goes on, group by group.

Idea        Where several processes train together, what averages the gradients can send those that are
            there while others are computed. So inputs pass through a node of autograd for each group of
            their gradients but the first. The node of the call returns the first group. Autograd hands
            that on and runs the node of the next group: the backward goes on until that is there.
Guarantee   Sums, hooks, ``inputs=`` and ``torch.autograd.grad`` are autograd's own. Where the graph is kept,
            or not every node is to run, all gradients come at once, as without.
Complexity  Linear in inputs; a node of autograd for each group.
Gaps        A call with an input that several terms come for, or that changes, announces nothing.

    autograd   | call ........ | hooks, send | group 1 ... | hooks, send | group 2 ... | hooks, send |
    backward   [ up to group 0 ]             [ up to 1     ]             [ up to 2     ]
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.capture.program import Program
from tightrope.capture.second import differentiating
from tightrope.lower import Groups, groups


class GradientGroups:
    """The gradients of one backward, group by group.

    Attributes:
        groups: numbers of the inputs that they are gradients of.
        more: goes on with the backward up to the next group and returns a gradient for each input, None for
            those of other groups; None where all came at once, or nothing is left.
    """

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.more: Callable[[], list[Any]] | None = None
        self._given: dict[int, torch.Tensor] = {}
        self._next = 1
        self._came: dict[int, list[Any]] = {}

    def pass_on(self, given: list[Any]) -> None:
        """Replace the inputs behind the first group of gradients by tensors that have a node of autograd."""
        for number in range(len(self.groups) - 1, 0, -1):  # autograd runs what was made last first
            some = {position: given[position] for position in self.groups[number]}
            self._given |= some
            passed = _Group.apply(self, number, *some.values())  # type: ignore[no-untyped-call]
            for position, one in zip(some, passed, strict=True):
                given[position] = one

    def take_back(self, given: list[Any]) -> None:
        """Put the inputs back, once: what holds on to the others, and is held by their nodes, never dies."""
        for position, one in self._given.items():
            given[position] = one
        self._given.clear()

    @property
    def all_run(self) -> bool:
        """Whether each group has a node in the backward under way, which makes no graph of its gradients."""
        return not differentiating() and _torch.num_that_run(self) == len(self.groups) - 1

    def take(self, number: int) -> list[Any] | None:
        """Go on until a group is there and return it; None where it came with the first."""
        while self.more is not None and self._next <= number:
            gradients = self.more()
            self._came[self._next] = [gradients[position] for position in self.groups[self._next]]
            self._next += 1
            if self._next == len(self.groups):
                self.more = None
        return self._came.pop(number, None)


def groups_of(program: Program, real: Sequence[Any]) -> Groups:
    """The groups in which the gradients of a captured call may be announced; nothing where none may.

    Args:
        program: as captured.
        real: what the call was given.
    """
    if not program.has_backward or program.terms:
        return ()
    forward, backward = program.graph.parts
    num = len(forward.inputs) - len(program.constants)
    changed = {given for _, given in program.changed}
    wanted = {
        number for number, one in enumerate(real) if isinstance(one, torch.Tensor) and one.requires_grad
    }
    if num != len(real) or len(backward.outputs) < num or changed & wanted:
        return ()
    return groups(program.graph, wanted)


def handed_on(groups: Groups, given: list[Any]) -> GradientGroups | None:
    """Pass inputs through nodes of autograd where others wait for gradients.

    Args:
        groups: of their gradients.
        given: the inputs of a call; those behind the first group are replaced.
    """
    if not (groups and torch.is_grad_enabled() and _trains_together()):
        return None
    by_group = GradientGroups(groups)
    by_group.pass_on(given)
    return by_group


class _Group(torch.autograd.Function):
    """Inputs as they are, whose gradients the backward of the call announces together."""

    @staticmethod
    def forward(ctx: Any, by_group: GradientGroups, number: int, *given: torch.Tensor) -> Any:
        ctx.by_group, ctx.number = by_group, number
        ctx.set_materialize_grads(False)
        return tuple(one.detach() for one in given)  # autograd makes views of what is returned as it came

    @staticmethod
    def backward(ctx: Any, *came: torch.Tensor | None) -> Any:
        made = ctx.by_group.take(ctx.number)
        return None, None, *(came if made is None else map(_sum, came, made))


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """Add what came of an output that looks into an input."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _trains_together() -> bool:
    """Tell whether this process is one of several that train together."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
