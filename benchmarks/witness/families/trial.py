"""What a family is: something that trains, with its models and one step of its loop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Trial:
    """Something to train.

    Attributes:
        models: each gets the budget.
        step: runs one training step, the update included, and returns what it computed: losses, outputs.
            Gradients stay until the next one.
    """

    models: tuple[nn.Module, ...]
    step: Callable[[], Sequence[Tensor]]

    def parameters(self) -> Iterator[Tensor]:
        """Iterate over the parameters of all models."""
        for model in self.models:
            yield from model.parameters()

    def buffers(self) -> Iterator[Tensor]:
        """Iterate over the buffers of all models."""
        for model in self.models:
            yield from model.buffers()


@dataclass(frozen=True)
class Family:
    """A kind of model and loop.

    Attributes:
        name: for the table.
        make: builds it; draws from the global random state.
    """

    name: str
    make: Callable[[], Trial]


Context = Callable[[], AbstractContextManager[object]]


def ordinary(
    model: nn.Module,
    *inputs: Tensor,
    loss: Callable[[Tensor], Tensor] | None = None,
    context: Context = nullcontext,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Trial:
    """The usual loop over one batch: gradients cleared, forward, backward, update.

    Args:
        model: returns the loss, or what ``loss`` takes.
        inputs: of the model.
        loss: computed outside of the model.
        context: around forward and loss.
        make: the optimizer from the parameters.
    """
    optimizer = make(model.train().parameters(), lr=1e-3)

    def step() -> Sequence[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        with context():
            found = model(*inputs)
            value = found if loss is None else loss(found)
        value.backward()
        optimizer.step()
        return [value.detach()]

    return Trial((model,), step)
