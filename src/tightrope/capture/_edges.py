"""What autograd will do with the gradient of a tensor, asked while a backward runs."""

import sys
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward


class Probe:
    """A node of autograd that ``backward()`` always runs, and ``torch.autograd.grad`` never."""

    def __init__(self) -> None:
        self.leaf = torch.empty(0, requires_grad=True)
        self._node = self.leaf.expand(0).grad_fn
        assert self._node is not None

    @property
    def runs(self) -> bool:
        """Whether the backward under way is to give every leaf its gradient."""
        assert self._node is not None
        return bool(torch._C._will_engine_execute_node(self._node.next_functions[0][0]))


def backward_number() -> int:
    """Number of the backward under way."""
    return int(torch._C._current_graph_task_id())


def is_wanted(node: Any, number: int, probe: Probe) -> bool:
    """Tell whether the backward under way is to return the gradient of a node's output.

    Where the caller cannot be seen, as in a thread for a device, every node that is to run counts as wanted.
    """
    if not torch._C._will_engine_execute_node(node) or probe.runs:
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _engine_run_backward.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return True
    given = frame.f_locals
    inputs = given["kwargs"].get("inputs") or (given["args"][3] if len(given["args"]) > 3 else ())
    return any(_edge(one) == (node, number) for one in inputs or ())


def _edge(one: Any) -> tuple[Any, int]:
    return (one.grad_fn, one.output_nr) if isinstance(one, torch.Tensor) else (one.node, one.output_nr)
