"""Compile programs, measure them, and compare them with op by op runs.

Idea        Every distinct program is compiled once per process, and torch keeps its code on disk. It is
            measured like an op: on made-up inputs, its time and every allocation that it makes.
Guarantee   A program that is offered gave the unfused results within `tightrope.fuse.tolerance`, in
            memory of its own, laid out as captured, on these inputs.
Gaps        Made-up inputs are not the real ones; see `tightrope.run.stretch_check`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from tightrope.capture._inductor import compile_loops
from tightrope.core import TightropeError, View
from tightrope.fuse.program import FusedProgram
from tightrope.fuse.tolerance import difference
from tightrope.fuse.traced import function_of
from tightrope.native.hook.allocator import Allocator
from tightrope.price.kernels import dtype_of
from tightrope.price.measure import Measured, measure
from tightrope.price.store import PriceStore

Compiled = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

_COMPILED: Final[dict[str, Compiled]] = {}
_REFUSED: Final[dict[str, str]] = {}
"""Why programs cannot be fused, for as long as the process lives: the next one may have another compiler."""


def compiled(program: FusedProgram) -> Compiled:
    """Compile a program, once per process.

    Raises:
        TightropeError: the compiler refuses it.
    """
    if program.key not in _COMPILED:
        function = function_of(program)
        layouts = [(view.shape, view.strides, dtype_of(view.dtype)) for view in program.inputs]
        _COMPILED[program.key] = compile_loops(function, layouts)
    return _COMPILED[program.key]


def price(program: FusedProgram, *, allocator: Allocator | None, store: PriceStore) -> Measured | str:
    """Measure a program, or say why it cannot be fused.

    Args:
        program: any.
        allocator: the hook that records allocations, None = times only.
        store: prices known already; new ones are added.
    """
    if program.key in _REFUSED:
        return _REFUSED[program.key]
    name = f"stretch {program.key}"
    found = store.get(name)
    if found is not None and (found.known or allocator is None):
        return found
    try:
        measured = _measured(program, allocator)
    except torch.OutOfMemoryError:
        return "too large to be measured under the limit"  # under another budget there may be room
    except (TightropeError, RuntimeError) as error:
        return _refused(program, error)
    store.put(name, measured)
    return measured


def refused(program: FusedProgram) -> str:
    """Compile a program; say why it cannot be, or nothing."""
    try:
        compiled(program)
    except TightropeError as error:
        return _refused(program, error)
    return ""


def _refused(program: FusedProgram, error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _REFUSED.setdefault(program.key, lines[0].rstrip("."))


def _measured(program: FusedProgram, allocator: Allocator | None) -> Measured:
    run = compiled(program)
    given = made_up(program.inputs)
    with torch.no_grad():
        _check(program, run, given)
        return measure(lambda: tuple(run(list(given))), allocator)


def _check(program: FusedProgram, run: Compiled, given: list[torch.Tensor]) -> None:
    found = list(run(list(given)))
    wanted = function_of(program)(given)
    roots = {result.view.base: result.view for call in program.calls for result in call.results}
    memory = {tensor.untyped_storage().data_ptr() for tensor in given}
    for tensor, want, number in zip(found, wanted, program.outputs, strict=True):
        view, own = roots[number], tensor.untyped_storage()
        looks = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), tensor.dtype)
        if looks != (view.shape, view.strides, view.offset, dtype_of(view.dtype)):
            raise TightropeError("lays its results out otherwise than its ops")
        if own.data_ptr() in memory:
            raise TightropeError("gives results that share memory")
        if difference(tensor, want) > 1:
            raise TightropeError("gives other values than its ops, beyond the tolerance")
        memory.add(own.data_ptr())


def made_up(layouts: Sequence[View]) -> list[torch.Tensor]:
    """Make inputs: numbers between 0.1 and 1.1, alternating truths, zeros for integers."""
    draw = torch.Generator().manual_seed(0)
    return [_tensor(view, draw) for view in layouts]


def _tensor(view: View, draw: torch.Generator) -> torch.Tensor:
    dtype = dtype_of(view.dtype)
    size = max(view.end // dtype.itemsize, 1)
    whole: Any = torch.zeros(size, dtype=dtype)
    if dtype.is_floating_point:
        whole.uniform_(0.1, 1.1, generator=draw)
    elif dtype is torch.bool:
        whole[::2] = True
    return torch.as_strided(whole, view.shape, view.strides)
