"""What a fused stretch computes, apart from where: equal layers have equal programs, compiled once."""

import hashlib
from collections.abc import Callable
from functools import cached_property

import msgspec
from msgspec.structs import replace

from tightrope.core import Alloc, Argument, Fused, Items, Result, View
from tightrope.core.values import EMPTY, views


class FusedCall(msgspec.Struct, frozen=True, array_like=True):
    """One op: inputs and earlier values are views whose base is their number in the program."""

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    results: tuple[Result, ...]


class FusedProgram(msgspec.Struct, frozen=True, dict=True):
    """A function of tensors.

    Attributes:
        inputs: layouts of its arguments, numbered from 0; offsets are left out.
        calls: in order; what they make is numbered on from the inputs.
        outputs: numbers of the values that it returns.
        threads: of torch: code is compiled for a number of threads.
    """

    inputs: tuple[View, ...]
    calls: tuple[FusedCall, ...]
    outputs: tuple[int, ...]
    threads: int = 1

    @cached_property
    def key(self) -> str:
        """Hash all of it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def program_of(fused: Fused, *, threads: int) -> tuple[FusedProgram, tuple[View, ...], tuple[int, ...]]:
    """Tell what a stretch computes, from which views of buffers, into which buffers.

    Returns:
        The program, its arguments as views of buffers, and the buffers that its outputs become.

    Example:
        >>> from tightrope.core import Run
        >>> x, y = (View(base, "float32", (2,), (1,)) for base in (3, 4))
        >>> run = Run(0, "aten.neg.default", (x,), results=(Result(-1, y),))
        >>> program, given, made = program_of(Fused((run,), (Alloc(4, 1, 8, storage=0),)), threads=1)
        >>> program.calls[0].arguments[0].base, program.outputs, given[0].base, made
        (0, (1,), 3, (4,))
    """
    own = {event.buffer for event in fused.inside if isinstance(event, Alloc) and event.storage >= 0}
    made = {result.view.base for run in fused.runs for result in run.results}
    given: dict[View, int] = {}
    for run in fused.runs:
        for value in (*run.arguments, *(item for _, item in run.keywords)):
            for view in views(value):
                if view.base not in made and view.base != EMPTY:
                    given.setdefault(view, len(given))
    number: dict[int, int] = {}
    calls = []
    for run in fused.runs:
        arguments = tuple(_numbered(value, given, number) for value in run.arguments)
        keywords = tuple((name, _numbered(value, given, number)) for name, value in run.keywords)
        for result in run.results:
            number[result.view.base] = len(given) + len(number)
        results = tuple(
            Result(r.position, replace(r.view, base=number[r.view.base], input=-1)) for r in run.results
        )
        calls.append(FusedCall(run.target, arguments, keywords, results))
    inputs = tuple(replace(view, base=k, offset=0, input=-1) for view, k in given.items())
    kept = tuple(base for base in number if base in own)
    return (
        FusedProgram(inputs, tuple(calls), tuple(number[base] for base in kept), threads),
        tuple(given),
        kept,
    )


def _numbered(value: Argument, given: dict[View, int], number: dict[int, int]) -> Argument:
    def renamed(view: View) -> View:
        if view in given:
            return replace(view, base=given[view], offset=0, input=-1)
        return replace(view, base=number[view.base], input=-1)

    return _mapped(value, renamed)


def _mapped(value: Argument, change: Callable[[View], View]) -> Argument:
    if isinstance(value, View):
        return value if value.base == EMPTY else change(value)
    if isinstance(value, Items):
        return Items(tuple(_mapped(item, change) for item in value.items))
    return value
