"""The graph of a whole training step, measured, without running the step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tightrope.core import CaptureError, Graph
from tightrope.run.session.whole_step import WholeStep
from tightrope.run.step import Stopped, step


def step_graph(
    model: torch.nn.Module,
    args: Sequence[Any],
    optimizer: torch.optim.Optimizer,
    kwargs: Mapping[str, Any] | None = None,
) -> Graph:
    """Capture forward, backward and update as one graph, as `tightrope.step` does, and price its ops.

    A gradient ends in it where the update has used it. Parameters keep their values; what state the
    optimizer makes at its first update is made.

    Args:
        model: its forward returns the loss.
        args: of one call.
        optimizer: `torch.optim.SGD`, `torch.optim.Adam` or `torch.optim.AdamW`.
        kwargs: of the call.

    Raises:
        CaptureError: the step is not one graph.
        TightropeError: the optimizer is another one.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Flatten(0))
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> [op.phase for op in step_graph(model, (torch.ones(1, 8),), sgd).ops][-1].value
        'optimizer'
    """
    found: list[Graph] = []

    def stop(whole: WholeStep, given: list[Any]) -> None:
        found.append(whole.calls.captured[whole.number].graph)
        raise Stopped

    train = step(model, budget="100%", model=model, optimizer=optimizer, progress=False)
    train.before_run = stop
    try:
        train(*args, **dict(kwargs or {}))
    except Stopped:
        pass
    finally:
        train.before_run = None
        train.accounts.release(train)
    if not found:
        raise CaptureError("the call ran no planned graph: let the model's forward return the loss.")
    return found[0]
