"""Find loops again in a list of calls that was recorded while Python ran them.

Idea        Calls of one iteration are those of the iteration before, with the same shapes. So a loop is the
            longest stretch that equals itself some calls later. There every operand must be of one of four
            kinds: made in the iteration; made in the one before; the same in all; an element whose number
            grows by the same in every step.
Guarantee   Every operand of every iteration was looked at. What is not of these kinds is no loop.
Complexity  Comparisons of whole numbers, calls times the longest period; then every operand once per start.
Gaps        Values of the iteration before the last one are not found.
"""

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tightrope.core import CaptureError
from tightrope_forms.loops.record import Call, CallRecording, Ref

SHORTEST: Final = 4
"""Iterations from which on a loop is worth its code."""
LONGEST_PERIOD: Final = 400
"""Calls of one iteration."""
_TAKES: Final = (Tensor.__getitem__, Tensor.select, torch.select)


class Carried(NamedTuple):
    """An operand from the iteration before."""

    value: Ref  # with the number of the call in its iteration
    first: Ref  # what it is before the first iteration


class Stepped(NamedTuple):
    """An operand that is another in every iteration: elements of a tensor, or separate values."""

    source: Ref | None  # None where ``items`` names them
    axis: int
    start: int
    by: int
    items: tuple[Ref, ...] = ()


class Fixed(NamedTuple):
    """An operand that is the same in every iteration."""

    ref: Ref


KINDS: Final = (Stepped, Carried, Fixed)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop in a recording; leaves of its calls are `Ref`, `Carried`, `Stepped` or `Fixed`."""

    start: int  # its first call
    period: int  # calls per iteration
    steps: int  # iterations
    body: tuple[Call, ...]  # of an iteration; a `Ref` has the number inside of it
    used: dict[Ref, tuple[int, ...]]  # values that are needed outside, and in which iterations
    once: list[int]  # calls, by number in the recording, that are the same in all iterations

    @property
    def end(self) -> int:
        """The first call behind it."""
        return self.start + self.period * self.steps

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What an iteration reads: other elements in every step (x), states (s), and the rest (w)."""
        leaves = [leaf for call in self.body for leaf in call.leaves]
        kinds = ((letter, one) for letter, kind in zip("xsw", KINDS, strict=True)
                 for one in dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, kind)))  # fmt: skip
        return {f"{letter}{at}": one for at, (letter, one) in enumerate(kinds)}

    @cached_property
    def states(self) -> dict[str, Carried]:
        """Those of them that are states."""
        return {name: one for name, one in self.inputs.items() if isinstance(one, Carried)}

    @cached_property
    def outputs(self) -> list[Ref]:
        """What an iteration gives."""
        return sorted({*(one.value for one in self.states.values()), *self.used})

    @cached_property
    def whole(self) -> list[Ref]:
        """Outputs of which every step is needed outside, and not the last state alone."""
        last = {one.value for one in self.states.values()}
        return [ref for ref, at in self.used.items() if at != (self.steps - 1,) or ref not in last]

    def refs(self) -> list[Ref]:
        """List what it reads from outside."""
        return [ref for one in self.inputs.values() for ref in outside_of(one)]


def outside_of(one: Stepped | Carried | Fixed) -> Sequence[Ref]:
    """List what an input is before the loop."""
    if isinstance(one, Stepped):
        return one.items if one.source is None else [one.source]
    return [one.first if isinstance(one, Carried) else one.ref]


def loops(recording: CallRecording) -> list[Loop]:
    """Find all loops of a recording, in order; they do not overlap."""
    found: list[Loop] = []
    spans = [(0, len(recording.calls))]
    tokens = _tokens(recording.calls)
    while spans:
        start, end = spans.pop()
        for first, period, length in _repeats(tokens[start:end]):
            if (loop := _loop(recording, start + first, period, length)) is not None:
                found.append(loop)
                spans += [(start, loop.start), (loop.end, end)]
                break
    return sorted(found, key=lambda one: one.start)


def _tokens(calls: Sequence[Call]) -> Any:
    """Number calls so that those that may be the same of two iterations have the same number."""
    numbers: dict[Any, int] = {}
    found = []
    for call in calls:
        free = call.function in _TAKES
        leaves = ["ref" if isinstance(one, Ref) else "int" if free and type(one) is int else repr(one)
                  for one in call.leaves]  # fmt: skip
        key = (call.function, *leaves, str(call.tree), call.shapes)
        found.append(numbers.setdefault(key, len(numbers)))
    return np.asarray(found, dtype=np.int64)


def _repeats(tokens: Any) -> list[tuple[int, int, int]]:
    """List stretches that equal themselves some calls later, those of most calls first."""
    found = []
    for period in range(1, min(len(tokens) // SHORTEST, LONGEST_PERIOD) + 1):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], tokens[:-period] == tokens[period:], [0]))))
        lengths = edges[1::2] - edges[::2]
        length = int(max(lengths, default=0)) + period
        if length >= SHORTEST * period:
            first = int(edges[2 * lengths.argmax()])
            found.append((-(length - length % period), period, first, length))
    return [(first, period, length) for _, period, first, length in sorted(found)[:8]]


def _loop(recording: CallRecording, first: int, period: int, length: int) -> Loop | None:
    """Try every call of the first period as the first of an iteration; take that which carries least."""
    found = list[Loop]()
    for start in range(first, min(first + period, first + length - SHORTEST * period + 1)):
        steps = (first + length - start) // period
        with suppress(CaptureError):
            body, once = _body(recording.calls[start : start + period * steps], start, period)
            found.append(Loop(start, period, steps, body, _used(recording, start, period, steps), once))
    best = min(found, key=lambda one: (-one.steps, len(one.states)), default=None)
    return best if best and best.states else None


def _body(calls: Sequence[Call], start: int, period: int) -> tuple[tuple[Call, ...], list[int]]:
    """Write down one iteration, and calls that are the same in all: they are taken out of the loop."""
    body, once = list[Call](), list[int]()
    for at in range(period):
        call, every = calls[at], zip(*(one.leaves for one in calls[at::period]), strict=True)
        leaves = [_leaf(one, start, period) for one in every]
        for n, one in enumerate(leaves):
            if isinstance(one, Ref) and start + one.call in once:
                leaves[n] = body[one.call].leaves[one.item]
        if any(isinstance(one, range) for one in leaves):
            call, leaves = call._replace(function=operator.pos), [_taken(call, leaves)]
        elif not any(isinstance(one, Ref | Carried | Stepped) for one in leaves):
            once.append(start + at)
            leaves = [Fixed(Ref(start + at, item)) for item in range(len(call.shapes))]
            call = call._replace(function=operator.pos)
        body.append(call._replace(leaves=tuple(leaves)))
    return tuple(body), once


def _leaf(every: Sequence[Any], start: int, period: int) -> Any:
    """Say what an operand is over all iterations; a number that grows is a range."""
    first = every[0]
    if not isinstance(first, Ref):
        if type(first) is int and (by := every[1] - first):
            grows = range(first, first + by * len(every), by)
            if tuple(grows) == tuple(every):
                return grows
        elif all(repr(one) == repr(first) for one in every):
            return first
    elif all(isinstance(one, Ref) for one in every):
        own = [ref._replace(call=ref.call - start - k * period) for k, ref in enumerate(every)]
        if 0 <= own[0].call < period and len(set(own)) == 1:
            return own[0]
        before = {ref._replace(call=ref.call + period) for ref in own[1:]}
        if len(before) == 1 and 0 <= (value := before.pop()).call < period and first.call < start:
            return Carried(value, first)
        if all(ref.call < start for ref in every):
            return Fixed(first) if len(set(every)) == 1 else Stepped(None, 0, 0, 1, tuple(every))
    raise CaptureError("an operand is of no kind that a loop has")


def _taken(call: Call, leaves: Sequence[Any]) -> Stepped:
    """Read ``x[:, t]`` or ``x.select(axis, t)`` as elements of a tensor along an axis."""
    source, *index = leaves
    at, *more = (n for n, one in enumerate(index) if isinstance(one, range))
    grows, axis = index.pop(at), None
    if call.function is not Tensor.__getitem__:
        axis = index[0] if at == 1 and type(index[0]) is int else None
    elif all(isinstance(one, slice) and one == slice(None) for one in index):
        axis = at
    if more or axis is None or not isinstance(source, Fixed) or call.function not in _TAKES:
        raise CaptureError("elements are taken in a way that is not affine")
    return Stepped(source.ref, axis, grows.start, grows.step)


def _used(recording: CallRecording, start: int, period: int, steps: int) -> dict[Ref, tuple[int, ...]]:
    end = start + period * steps
    found: dict[Ref, set[int]] = {}
    outside = [ref for call in recording.calls[end:] for ref in call.refs()]
    outside += [one for one in recording.leaves if isinstance(one, Ref)]
    for ref in outside:
        if start <= ref.call < end:
            step, at = divmod(ref.call - start, period)
            found.setdefault(ref._replace(call=at), set()).add(step)
    return {ref: tuple(sorted(at)) for ref, at in sorted(found.items())}
