"""Compare what an instruction hands to a kernel with what the op of the graph does.

Two arguments agree when they have the same type and value, and each view looks in the same way into
the live buffer of the same storage. Each function returns what is wrong in words, or nothing.
"""

from collections.abc import Iterator, Mapping

from tightrope.core import Argument, Input, Items, Op, Result, Run, StorageId, View
from tightrope.core.values import EMPTY

Live = Mapping[StorageId, int]


def same_arguments(run: Run, op: Op, live: Live) -> str:
    """Compare positional arguments and keywords."""
    if len(run.arguments) != len(op.arguments) or len(run.keywords) != len(op.keywords):
        return f"hands over {len(run.arguments)} + {len(run.keywords)} arguments; the op has others"
    for position, (mine, yours) in enumerate(zip(run.arguments, op.arguments, strict=True)):
        if not _same(mine, yours, live):
            return f"argument {position} is {_short(mine)}; the op has {_short(yours)}"
    for (name, mine), (wanted, yours) in zip(run.keywords, op.keywords, strict=True):
        if name != wanted or not _same(mine, yours, live):
            return f"argument {name} is {_short(mine)}; the op has {wanted} = {_short(yours)}"
    return ""


def same_results(run: Run, op: Op, made: Live) -> str:
    """Compare which buffer each result becomes, and how it looks."""
    if len(run.results) != len(op.results):
        return f"names {len(run.results)} results; the op has {len(op.results)}"
    for mine, yours in zip(run.results, op.results, strict=True):
        if (
            type(mine) is not Result
            or mine.position != yours.position
            or not _same(mine.view, yours.view, made)
        ):
            return f"result {mine.position} is {_short(mine.view)}; the op has {_short(yours.view)}"
    return ""


def same_outputs(mine: tuple[Argument, ...], yours: tuple[Argument, ...], live: Live) -> str:
    """Compare what the caller gets."""
    if len(mine) != len(yours):
        return f"hands over {len(mine)} outputs; the graph has {len(yours)}"
    for position, (one, other) in enumerate(zip(mine, yours, strict=True)):
        if not _same(one, other, live):
            return f"output {position} is {_short(one)}; the graph has {_short(other)}"
    return ""


def same_inputs(mine: tuple[Input, ...], yours: tuple[Input, ...], live: Live) -> str:
    """Compare what the caller hands over."""
    if len(mine) != len(yours):
        return f"takes {len(mine)} inputs; the graph has {len(yours)}"
    for one, other in zip(mine, yours, strict=True):
        if one.name != other.name or not _same(one.view, other.view, live):
            return f"input {one.name} is {_short(one.view)}; the graph has {other.name} {_short(other.view)}"
    return ""


def bases(values: tuple[Argument, ...]) -> Iterator[int]:
    """Iterate over the buffers that the views in arguments look into."""
    for value in values:
        if type(value) is View and value.base != EMPTY:
            yield value.base
        elif type(value) is Items:
            yield from bases(value.items)


def _same(mine: Argument, yours: Argument, live: Live) -> bool:
    if type(mine) is not type(yours):
        return False
    if type(mine) is View and type(yours) is View:
        return (
            mine.base == (EMPTY if yours.base == EMPTY else live.get(yours.base))
            and mine.shape == yours.shape
            and mine.strides == yours.strides
            and mine.offset == yours.offset
            and mine.dtype == yours.dtype
            and mine.bits == yours.bits
            and mine.input == yours.input
        )
    if type(mine) is Items and type(yours) is Items:
        pairs = zip(mine.items, yours.items, strict=False)
        return len(mine.items) == len(yours.items) and all(_same(a, b, live) for a, b in pairs)
    return mine == yours


def _short(value: Argument) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
