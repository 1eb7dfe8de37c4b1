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
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tightrope_forms.loops.record import Call, CallRecording, Ref

SHORTEST: Final = 4
"""Iterations from which on a loop is worth its code."""
LONGEST_PERIOD: Final = 400
"""Calls of one iteration."""
_TAKES: Final = (Tensor.__getitem__, Tensor.select, torch.select)


class _Same(NamedTuple):
    value: Any


class _Grows(NamedTuple):
    start: int
    by: int


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


class Loop(NamedTuple):
    """A loop in a recording; leaves of its calls are `Ref`, `Carried`, `Stepped` or `Fixed`."""

    start: int  # its first call
    period: int  # calls per iteration
    steps: int  # iterations
    body: tuple[Call, ...]  # of an iteration; a `Ref` has the number inside of it
    used: dict[Ref, tuple[int, ...]]  # values that are needed outside, and in which iterations
    once: tuple[int, ...]  # calls, by number in the recording, that are the same in all iterations

    @property
    def end(self) -> int:
        """The first call behind it."""
        return self.start + self.period * self.steps


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
    best: tuple[int, int, Loop] | None = None
    for start in range(first, min(first + period, first + length - SHORTEST * period + 1)):
        steps = (first + length - start) // period
        if (found := _body(recording.calls, start, period, steps)) is None:
            continue
        body, once = _without_fixed(found, start)
        carried = {leaf.value for call in body for leaf in call.leaves if isinstance(leaf, Carried)}
        if best is None or (-steps, len(carried)) < best[:2]:
            loop = Loop(start, period, steps, body, _used(recording, start, period, steps), once)
            best = (-steps, len(carried), loop)
    return None if best is None or not best[1] else best[2]


def _body(calls: Sequence[Call], start: int, period: int, steps: int) -> tuple[Call, ...] | None:
    body = []
    for at in range(period):
        every = [calls[start + at + k * period] for k in range(steps)]
        leaves = [_leaf([one.leaves[n] for one in every], start, period) for n in range(len(every[0].leaves))]
        if any(one is None for one in leaves):
            return None
        if grows := [n for n, one in enumerate(leaves) if isinstance(one, _Grows)]:
            if (taken := _taken(every[0], leaves, grows)) is None:
                return None
            body.append(every[0]._replace(function=operator.pos, leaves=(taken,)))
        else:
            kept = tuple(one.value if isinstance(one, _Same) else one for one in leaves)
            body.append(every[0]._replace(leaves=kept))
    return tuple(body)


def _without_fixed(body: Sequence[Call], start: int) -> tuple[tuple[Call, ...], tuple[int, ...]]:
    """Take calls out of the loop that are the same in all iterations."""
    made, once = list[Call](), list[int]()
    for at, call in enumerate(body):
        leaves = tuple(made[one.call].leaves[one.item] if isinstance(one, Ref) and one.call in once else one
                       for one in call.leaves)  # fmt: skip
        function, moves = call.function, any(isinstance(one, Ref | Carried | Stepped) for one in leaves)
        if function is not operator.pos and not moves:
            once.append(at)
            leaves = tuple(Fixed(Ref(start + at, item)) for item in range(len(call.shapes)))
            function = operator.pos
        made.append(call._replace(function=function, leaves=leaves))
    return tuple(made), tuple(start + at for at in once)


def _leaf(every: list[Any], start: int, period: int) -> Any:
    """Say what an operand is over all iterations, or None."""
    if not isinstance(every[0], Ref):
        if type(every[0]) is int and every[1] != every[0]:
            by = every[1] - every[0]
            return _Grows(every[0], by) if all(x == every[0] + k * by for k, x in enumerate(every)) else None
        return _Same(every[0]) if all(repr(one) == repr(every[0]) for one in every) else None
    if not all(isinstance(one, Ref) for one in every):
        return None
    own = [ref._replace(call=ref.call - start - k * period) for k, ref in enumerate(every)]
    if all(0 <= ref.call < period for ref in own) and len(set(own)) == 1:
        return own[0]
    before = [ref._replace(call=ref.call + period) for ref in own[1:]]
    if len(set(before)) == 1 and 0 <= before[0].call < period and every[0].call < start:
        return Carried(before[0], every[0])
    if len(set(every)) == 1 and every[0].call < start:
        return Fixed(every[0])
    if all(ref.call < start for ref in every):
        return Stepped(None, 0, 0, 1, tuple(every))
    return None


def _taken(call: Call, leaves: Sequence[Any], grows: Sequence[int]) -> Stepped | None:
    """Read ``x[:, t]`` or ``x.select(axis, t)`` as elements of a tensor along an axis."""
    source, grow = leaves[0], leaves[grows[0]]
    if not isinstance(source, Fixed) or call.function not in _TAKES or len(grows) != 1:
        return None
    same = [one.value for one in leaves[1:] if isinstance(one, _Same)]
    if call.function is not Tensor.__getitem__:
        axis = same[0] if grows[0] == 2 and same and type(same[0]) is int else None
    else:
        whole = all(isinstance(one, slice) and one == slice(None) for one in same)
        axis = grows[0] - 1 if whole and len(same) == len(leaves) - 2 else None
    return None if axis is None else Stepped(source.ref, axis, grow.start, grow.by)


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
