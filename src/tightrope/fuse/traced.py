"""A program as a Python function of tensors, for a compiler to trace or for op by op runs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tightrope.core import TightropeError, View
from tightrope.core.values import EMPTY, views
from tightrope.fuse.program import FusedCall, FusedProgram
from tightrope.fuse.views import Move, moves
from tightrope.price.kernels import dtype_of, resolve, value_of

Function = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]
"""Takes the inputs of a program and gives its outputs."""


def function_of(program: FusedProgram) -> Function:
    """Write a program as a function that calls its ops one by one; values go after their last use.

    Raises:
        TightropeError: a value is looked at in a way that no op here gives.
    """
    roots = {result.view.base: result.view for call in program.calls for result in call.results}
    ways = {view: _way(roots, view) for view in _views(program)}
    kernels = [resolve(call.target) for call in program.calls]
    dying = _dying(program)

    def run(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        values: dict[int, torch.Tensor] = dict(enumerate(given))

        def tensor(view: View) -> torch.Tensor:
            if view.base == EMPTY:
                return torch.empty_strided(view.shape, view.strides, dtype=dtype_of(view.dtype))
            return moved(values[view.base], ways[view])

        for call, kernel, gone in zip(program.calls, kernels, dying, strict=True):
            arguments = [value_of(value, tensor) for value in call.arguments]
            keywords = {name: value_of(value, tensor) for name, value in call.keywords}
            found: Any = kernel(*arguments, **keywords)
            for result in call.results:
                values[result.view.base] = found if result.position < 0 else found[result.position]
            del arguments, keywords, found
            for number in gone:
                del values[number]
        return tuple(laid_out(values[number], roots[number]) for number in program.outputs)

    return run


def moved(tensor: torch.Tensor, way: Sequence[Move]) -> torch.Tensor:
    """Go from a tensor to a view of it."""
    for kind, numbers in way:
        if kind == "reshape":
            tensor = tensor.reshape(numbers)
        elif kind == "permute":
            tensor = tensor.permute(numbers)
        elif kind == "narrow":
            tensor = tensor.narrow(*numbers)
        else:
            tensor = tensor.expand(numbers)
    return tensor


def laid_out(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """Copy a tensor where it does not lie in memory as the graph says."""
    if tuple(tensor.stride()) == view.strides:
        return tensor
    return tensor.new_empty_strided(view.shape, view.strides).copy_(tensor)


def _views(program: FusedProgram) -> list[View]:
    return [view for call in program.calls for view in _read(call)]


def _read(call: FusedCall) -> list[View]:
    values = (*call.arguments, *(item for _, item in call.keywords))
    return [view for value in values for view in views(value) if view.base != EMPTY]


def _dying(program: FusedProgram) -> list[list[int]]:
    """List for every call the values that nothing needs after it."""
    last: dict[int, int] = {}
    for number, call in enumerate(program.calls):
        touched = [*_read(call), *(result.view for result in call.results)]
        last.update((view.base, number) for view in touched)
    found: list[list[int]] = [[] for _ in program.calls]
    for base, number in last.items():
        if base not in program.outputs:
            found[number].append(base)
    return found


def _way(roots: dict[int, View], view: View) -> tuple[Move, ...]:
    root = roots.get(view.base)
    way = () if root is None else moves(root, view)
    if way is None:
        raise TightropeError(f"no op leads from {root} to {view}.")
    return way
