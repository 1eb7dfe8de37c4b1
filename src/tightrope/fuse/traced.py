"""A program as a Python function of tensors, for a compiler to trace or for op by op runs."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from tightrope.core import TightropeError, View
from tightrope.core.values import EMPTY, views
from tightrope.fuse.program import FusedCall, FusedProgram
from tightrope.fuse.views import Move, moves
from tightrope.price.kernels import Kernel, dtype_of, resolve, value_of

Function = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]
"""Takes the inputs of a program and gives its outputs."""


FOR_COMPILERS: Final = {"tightrope.norm_backward": "aten.native_batch_norm_backward.default"}
"""Ops that a compiler can read, instead of ours."""


def function_of(
    program: FusedProgram, *, wrap: Callable[[Kernel], Kernel] | None = None, for_compiler: bool = False
) -> Function:
    """Write a program as a function that calls its ops one by one.

    Args:
        program: any.
        wrap: put around the kernel of every op.
        for_compiler: call ops that a compiler can read.

    Raises:
        TightropeError: a value is looked at in a way that no op here gives.
    """
    roots = {result.view.base: result.view for call in program.calls for result in call.results}
    ways = {view: _way(roots, view) for view in _views(program)}
    instead = FOR_COMPILERS if for_compiler else {}
    kernels = [resolve(instead.get(call.target, call.target)) for call in program.calls]
    if wrap is not None:
        kernels = [wrap(kernel) for kernel in kernels]
    over = _last_uses(program)

    def run(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        values: dict[int, torch.Tensor] = dict(enumerate(given))

        def tensor(view: View) -> torch.Tensor:
            if view.base == EMPTY:
                return torch.empty_strided(view.shape, view.strides, dtype=dtype_of(view.dtype))
            return moved(values[view.base], ways[view])

        for call, kernel, ended in zip(program.calls, kernels, over, strict=True):
            arguments = [value_of(value, tensor) for value in call.arguments]
            keywords = {name: value_of(value, tensor) for name, value in call.keywords}
            found: Any = kernel(*arguments, **keywords)
            for result in call.results:
                values[result.view.base] = found if result.position < 0 else found[result.position]
            del arguments, keywords, found
            for number in ended:
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
    return [view for call in program.calls for view in _reads(call)]


def _reads(call: FusedCall) -> list[View]:
    values = (*call.arguments, *(item for _, item in call.keywords))
    return [view for value in values for view in views(value) if view.base != EMPTY]


def _last_uses(program: FusedProgram) -> list[list[int]]:
    """Per call, the numbers of values that nothing needs behind it."""
    last: dict[int, int] = {}
    for position, call in enumerate(program.calls):
        last |= dict.fromkeys((result.view.base for result in call.results), position)
        last |= dict.fromkeys((view.base for view in _reads(call)), position)
    over: list[list[int]] = [[] for _ in program.calls]
    for number, position in last.items():
        if number not in program.outputs:
            over[position].append(number)
    return over


def _way(roots: dict[int, View], view: View) -> tuple[Move, ...]:
    root = roots.get(view.base)
    way = () if root is None else moves(root, view)
    if way is None:
        raise TightropeError(f"no op leads from {root} to {view}.")
    return way
