"""The outputs of a model from which a backward starts, as far as that is known when the model is traced.

Idea        A model that returns its loss returns logits or hidden states too, and no loss outside reads them.
            Outputs from which a scalar one is computed are traced as unread.
Guarantee   Where every unread output lies on the way to one that is read, a backward from it reads nothing
            that the backward from those does not read.
Gaps        A loss that is no scalar, or is computed outside of the model, tells nothing. A derivative of
            the model's own that passes no gradient on breaks the guarantee; then a backward is refused once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from tightrope.capture import _torch

Choose: TypeAlias = Callable[[Mapping[int, torch.Tensor]], frozenset[int]]
"""Chooses the outputs from which a backward starts, by number."""


def everything(outputs: Mapping[int, torch.Tensor]) -> frozenset[int]:
    """Choose all outputs."""
    return frozenset(outputs)


def foreseen(outputs: Mapping[int, torch.Tensor]) -> frozenset[int]:
    """Choose all outputs but those from which a scalar one, a loss, is computed: logits, hidden states."""
    inside = _upstream(output for output in outputs.values() if output.ndim == 0)

    def is_inside(node: Any) -> bool:  # itself, or a view of what is
        return node in inside or inside.issuperset(before for before, _ in node.next_functions)

    return frozenset(k for k, output in outputs.items() if output.ndim == 0 or not is_inside(output.grad_fn))


class Ends:
    """Chooses the outputs from which a backward starts, and remembers which.

    Args:
        choose: see there.
        layouts: of gradients that are laid out otherwise than their outputs.

    Attributes:
        every: outputs from which one could start.
        read: those from which it does.
        covers: whether all others lie on the way to these.
    """

    def __init__(self, choose: Choose, layouts: _torch.Layouts = ()) -> None:
        self._choose, self.layouts = choose, layouts
        self.every: frozenset[int] = frozenset()
        self.read: frozenset[int] = frozenset()
        self.covers = True

    def __call__(self, outputs: Mapping[int, torch.Tensor]) -> frozenset[int]:
        """Choose, and look where the others lie."""
        self.every = frozenset(outputs)
        self.read = self._choose(outputs)
        upstream = _upstream(outputs[number] for number in self.read)
        unread = self.every - self.read
        self.covers = all(outputs[number].grad_fn in upstream for number in unread)
        return self.read


def _upstream(outputs: Iterable[torch.Tensor]) -> set[Any]:
    """List the nodes of autograd's graph that lead to outputs, theirs included."""
    waiting = [output.grad_fn for output in outputs]
    found: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return found
