"""Compile programs, measure them, and compare them with op by op runs.

Idea        Every distinct program is compiled once, many at a time, and its code kept on disk. It is
            measured like an op: on made-up inputs, its time and every allocation that it makes. Its time is
            taken in turns with that of its ops, so that what else the machine does slows both alike. What
            was measured is kept too, so the next process compiles nothing that it will not run.
Guarantee   A program that is offered gave the unfused results within `tightrope.fuse.tolerance`, in
            memory of its own, laid out as captured, on these inputs.
Gaps        Made-up inputs are not the real ones; see `tightrope.run.execute.check`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import torch
from msgspec.structs import replace

from tightrope.capture._inductor import CompiledLoops, Loops, compile_loops
from tightrope.core import Nanoseconds, TightropeError, View
from tightrope.fuse.program import FusedProgram
from tightrope.fuse.tolerance import difference
from tightrope.fuse.traced import function_of
from tightrope.native.hook.allocator import Allocator
from tightrope.price.device import processor
from tightrope.price.kernels import Kernel, dtype_of
from tightrope.price.measure import Measured, clock_here, measure
from tightrope.price.store import PriceStore

Compiled: TypeAlias = CompiledLoops
Tick: TypeAlias = Callable[[int, int, str], None]
"""Takes how many are done, of how many, and what comes next."""

_COMPILED: Final[dict[str, Compiled]] = {}
_MIN_RUNS, _MAX_RUNS = 3, 20
_ENOUGH_NS: Final[Nanoseconds] = 10_000_000
_REFUSED: Final[dict[str, str]] = {}
"""Why programs cannot be fused, for as long as the process lives: the next one may have another compiler."""


def compile_programs(programs: Iterable[FusedProgram], *, tick: Tick | None = None) -> None:
    """Compile programs together, each once per process; see `refusal` for what the compiler says.

    Args:
        programs: any.
        tick: called before each.
    """
    every: dict[str, Loops] = {}
    first: dict[str, str] = {}
    for program in programs:
        if program.key in _COMPILED or program.key in _REFUSED or program.key in every:
            continue
        try:
            function = function_of(program, for_compiler=True)
        except TightropeError as error:
            _refuse(program, str(error))
            continue
        layouts = [(view.shape, view.strides, dtype_of(view.dtype)) for view in program.inputs]
        every[program.key] = Loops(f"{program.key} {processor()}", function, layouts)
        first[program.key] = program.calls[0].target
    if not every:
        return
    keys = list(every)

    def ticked(done: int) -> None:
        if tick is not None:
            tick(done, len(keys), first[keys[done]])

    for key, found in zip(keys, compile_loops(list(every.values()), tick=ticked), strict=True):
        if isinstance(found, str):
            _REFUSED.setdefault(key, found.rstrip("."))
        else:
            _COMPILED[key] = found


def refusal(program: FusedProgram) -> str:
    """Say why a program cannot be fused, as far as it was tried; or nothing."""
    return _REFUSED.get(program.key, "")


def compiled(program: FusedProgram) -> Compiled:
    """Compile a program, once per process.

    Raises:
        TightropeError: the compiler refuses it.
    """
    compile_programs((program,))
    if program.key not in _COMPILED:
        raise TightropeError(f"{_REFUSED[program.key]}.")
    return _COMPILED[program.key]


def known(
    program: FusedProgram, before: Nanoseconds, *, allocator: Allocator | None, store: PriceStore
) -> Measured | str | None:
    """Look up what `price` would say, or None where it would have to compile."""
    if program.key in _REFUSED:
        return _REFUSED[program.key]
    found, ops = store.get(f"stretch {program.key}"), store.get(f"ops of stretch {program.key}")
    if found is None or ops is None or (allocator is not None and not found.known):
        return None
    return replace(found, ns=max(1, round(before * found.ns / ops.ns)))


def price(
    program: FusedProgram, before: Nanoseconds, *, allocator: Allocator | None, store: PriceStore
) -> Measured | str:
    """Measure a program, or say why it cannot be fused.

    Args:
        program: any.
        before: what its ops take one by one, as the graph prices them.
        allocator: the hook that records allocations, None = times only.
        store: prices known already; new ones are added.

    Returns:
        The price; its time is ``before``, times fused over unfused as measured here.
    """
    said = known(program, before, allocator=allocator, store=store)
    if said is not None:
        return said
    try:
        found, ops = _measured(program, allocator)
    except torch.OutOfMemoryError:
        return "too large to be measured under the limit"  # under another budget there may be room
    except (TightropeError, RuntimeError) as error:
        return _refuse(program, str(error) or type(error).__name__)
    store.put(f"stretch {program.key}", found)
    store.put(f"ops of stretch {program.key}", ops)
    return replace(found, ns=max(1, round(before * found.ns / ops.ns)))


def _refuse(program: FusedProgram, why: str) -> str:
    return _REFUSED.setdefault(program.key, why.strip().splitlines()[0].rstrip("."))


def _measured(program: FusedProgram, allocator: Allocator | None) -> tuple[Measured, Measured]:
    """Measure a program, and its ops one by one."""
    run = compiled(program)
    given = made_up(program.inputs)
    with torch.no_grad():
        _check(program, run, given)
        found = measure(lambda: tuple(run(list(given))), allocator)
        together, apart = _in_turns(program, run, given)
    return replace(found, ns=together), Measured(apart)


def _in_turns(
    program: FusedProgram, run: Compiled, given: list[torch.Tensor]
) -> tuple[Nanoseconds, Nanoseconds]:
    """Time a program and the kernels of its ops; the fastest of a few runs each."""
    _, clock = clock_here()
    inside = 0

    def timed(kernel: Kernel) -> Kernel:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal inside
            start = clock()
            found = kernel(*arguments, **keywords)
            inside += clock() - start
            return found

        return call

    ops = function_of(program, wrap=timed)
    together = apart = 2**62
    spent = 0
    for number in range(_MAX_RUNS):
        inside = 0
        ops(given)
        start = clock()
        run(list(given))
        took = clock() - start
        together, apart, spent = min(together, took), min(apart, inside), spent + took + inside
        if number + 1 >= _MIN_RUNS and spent > _ENOUGH_NS:
            break
    return max(1, together), max(1, apart)


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
