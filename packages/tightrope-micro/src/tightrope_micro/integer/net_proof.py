"""Prove that no intermediate of a whole integer net leaves 32 bits, for every input that its types can hold.

Idea        Op by op. What a sum of products can be follows from the weights that lie in flash and from the
            type of what is read; what is done with it is a small program, which `proof.proved` bounds. Rows
            (softmax, layer norm) are programs already. Nothing is taken from whoever chose the formats: all
            is read from the graph and its constants.
Source      interval arithmetic
Guarantee   A net that passes computes the same in 32 bits as in unbounded integers, for all inputs. Of a
            float kernel it is checked that it reads and writes the op's types and has finite numbers; what is
            made whole there is clamped before, by every text of `floats`.
Complexity  Linear in weights and channels.
Gaps        Ranges are those of types, not of what earlier ops can give; kernels are taken to compute what
            `net_reference` computes, which tests compare bit by bit.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Graph, Items, JudgeError, Op, View
from tightrope.core.values import EMPTY
from tightrope_micro.constants import Constants
from tightrope_micro.integer.costs import RowOp
from tightrope_micro.integer.epilogue import LIMITS, requantizing
from tightrope_micro.integer.floats import FloatRows
from tightrope_micro.integer.program import RowProgram
from tightrope_micro.integer.proof import proved

_LARGEST: Final = 2**31 - 1


class OpRange(NamedTuple):
    """What an op's largest intermediate takes.

    Attributes:
        op: name.
        bits: of a signed number that holds every intermediate.
    """

    op: str
    bits: int


def prove_net(
    graph: Graph, constants: Constants, programs: Sequence[RowProgram | FloatRows]
) -> tuple[OpRange, ...]:
    """Bound every intermediate of every op.

    Raises:
        JudgeError: names the op, the value that may leave its type, and its range.
    """
    known = {program.name: program for program in programs}
    found = []
    for op in graph.ops:
        rule = _RULES.get(op.target.removesuffix(".into"))
        if rule is None:
            raise JudgeError(f"{op.describe()} is not an op whose integers can be bounded.")
        try:
            found.append(OpRange(op.name, rule(_Look(op, constants, known))))
        except JudgeError as error:
            raise JudgeError(f"{op.describe()}: {error}") from error
    return tuple(found)


class _Look(NamedTuple):
    op: Op
    constants: Constants
    programs: Mapping[str, RowProgram | FloatRows]

    def view(self, at: int) -> View:
        value = self.op.arguments[at]
        if not isinstance(value, View):
            raise JudgeError(f"argument {at} is no tensor.")
        return value

    def numbers(self, first: int, last: int | None = None) -> list[int]:
        values = self.op.arguments[first:last]
        if not all(isinstance(value, int) for value in values):
            raise JudgeError(f"arguments {first} to {last} are not whole numbers.")
        return [int(value) for value in values if isinstance(value, int)]

    def table(self, at: int) -> NDArray[np.int64]:
        if self.view(at).base != EMPTY:
            raise JudgeError(f"argument {at} is no constant.")
        return self.constants.read(self.view(at)).astype(np.int64)

    @property
    def made(self) -> View:
        into = dict(self.op.keywords).get("out")
        return into if isinstance(into, View) else self.op.results[0].view


def _limits(view: View) -> tuple[int, int]:
    if view.dtype not in LIMITS:
        raise JudgeError(f"a value of {view.dtype} where whole numbers of up to 16 bits are expected.")
    return LIMITS[view.dtype]


def _epilogues(ends: NDArray[np.int64], times: NDArray[np.int64], numbers: Sequence[int], dtype: str) -> int:
    """Prove the change of format of every channel; ``ends`` are [channel, (low, high)] of its sums."""
    pre, shift, low, high = numbers
    if not (0 <= pre <= 31 and 0 <= shift <= 31):
        raise JudgeError(f"shifts by {pre} and {shift}.")
    if ends.min() < -(2**31) or ends.max() > _LARGEST:
        raise JudgeError(f"a sum of products from {ends.min()} to {ends.max()} leaves int32_t.")
    bits = 0
    for (first, last), factor in zip(ends.tolist(), times.tolist(), strict=True):
        program = requantizing(first, last, factor, shifts=(pre, shift), ends=(low, high), dtype=dtype)
        bits = max(bits, *(one.bits for one in proved(program)))
    return bits


def _layer(look: _Look) -> int:
    adds = look.op.target.endswith("_add")
    at = int(adds)
    given, made = look.view(at), look.made
    weights, start, times = (look.table(at + k) for k in (1, 2, 3))
    flat = weights.reshape(len(weights), -1)
    low, high = _limits(given)
    reach = max(-low, high)
    thin = adds and look.view(0).dtype == "int8"
    times = times.reshape(1 + thin, -1)
    if not len(start) == times.shape[1] == len(weights):
        raise JudgeError("weights, biases and multipliers are not as many.")
    if thin:  # the stream is one more input, and its factors are weights
        if _limits(given) != _limits(look.view(0)) or prod(look.view(0).shape) != prod(made.shape):
            raise JudgeError("adds to a value of another type or size.")
        flat = np.concatenate((flat, times[1][:, None]), axis=1)
    most = np.abs(start) + np.abs(flat).sum(axis=1) * reach  # of every partial sum, in whatever order
    if most.max() > _LARGEST:
        raise JudgeError(f"a partial sum of up to {most.max()} leaves int32_t.")
    up, down = np.maximum(flat, 0).sum(axis=1), np.minimum(flat, 0).sum(axis=1)
    # zeros beside an edge are numbers of the type as well
    ends = np.stack((start + up * low + down * high, start + up * high + down * low), axis=1)
    pre, shift, *clamp = look.numbers(-4)
    inner = clamp if thin or not adds else list(LIMITS[made.dtype])
    bits = _epilogues(ends, times[0], (pre, shift, *inner), made.dtype)
    if adds and not thin:
        if look.view(0).dtype != made.dtype:
            raise JudgeError("adds to a value of another type.")
        bits = max(bits, _summed(look.view(0), made, clamp, _limits(made)))
    return max(bits, 1 + int(most.max()).bit_length())


def _summed(one: View, made: View, clamp: Sequence[int], other: tuple[int, int]) -> int:
    low, high = _limits(made)
    if clamp[0] < low or clamp[1] > high or clamp[0] > clamp[1]:
        raise JudgeError(f"a clamp to {clamp[0]} to {clamp[1]} leaves {made.dtype}.")
    least, most = (a + b for a, b in zip(_limits(one), other, strict=True))
    return 1 + max(-1 - least, most).bit_length()


def _sum(look: _Look) -> int:
    one, other = look.view(0), look.view(1)
    if len(look.op.arguments) == 4:
        if look.made.dtype != one.dtype:
            raise JudgeError("adds values into another type.")
        return _summed(one, look.made, look.numbers(2), _limits(other))
    *factors, times, pre, shift, low, high = look.numbers(2)
    ends = np.array([_limits(view) for view in (one, other)]) * np.array(factors)[:, None]
    if min(factors) < 0 or np.abs(ends).max() > _LARGEST or (one.dtype, other.dtype) != ("int8", "int8"):
        raise JudgeError(f"adds {one.dtype} and {other.dtype} times {factors}.")
    return _epilogues(ends.sum(axis=0)[None], np.array([times]), (pre, shift, low, high), look.made.dtype)


def _convert(look: _Look) -> int:
    factor, pre, shift, low, high = look.numbers(1)
    ends = np.array([_limits(look.view(0))])
    return _epilogues(ends, np.array([factor]), (pre, shift, low, high), look.made.dtype)


def _average(look: _Look) -> int:
    given, made = look.view(0), look.made
    factor, pre, shift, low, high = look.numbers(-5)
    count = prod(given.shape) // max(prod(made.shape), 1)
    if isinstance(look.op.arguments[1], Items):
        count = prod(item for item in look.op.arguments[1].items if isinstance(item, int))
    ends = np.array([[count * end for end in _limits(given)]])
    return _epilogues(ends, np.array([factor]), (pre, shift, low, high), made.dtype)


def _row_kernel(look: _Look, at: int, op: RowOp, length: int, types: tuple[str, str]) -> int:
    """Prove the kernel of rows that an argument names; returns its bits."""
    name = look.op.arguments[at]
    program = look.programs.get(name) if isinstance(name, str) else None
    if program is None or program.length != length:
        raise JudgeError(f"{op} {name!r} of rows of {length} is not there.")
    into = program.target if isinstance(program, RowProgram) else program.into
    if (program.source, into) != types:
        raise JudgeError(f"{op} {name!r} reads or writes another type.")
    if isinstance(program, RowProgram):
        return max(one.bits if one.low < 0 else one.high.bit_length() for one in proved(program))
    many = (program.gamma, program.beta) if op is RowOp.LAYER_NORM else ()
    numbers = [program.scale, program.target, *(one for values in many for one in values)]
    if program.op is not op or not all(map(isfinite, numbers)) or min(numbers[:2]) <= 0:
        raise JudgeError(f"float kernel {name!r} is another function, or has numbers that are none.")
    if any(len(values) != length for values in many):
        raise JudgeError(f"float kernel {name!r} has not as many weights as a row has elements.")
    return 32


def _attention(look: _Look) -> int:
    q, k, v = (look.view(at) for at in range(3))
    size, keys = q.shape[3], k.shape[1]
    first, second = look.numbers(3, 6), look.numbers(6, 9)
    if (q.dtype, k.dtype, v.dtype) != ("int8",) * 3:
        raise JudgeError("attends to other types than 8 bits.")
    bits = _row_kernel(look, 9, RowOp.SOFTMAX, keys, ("int8_t", "uint8_t"))
    for (factor, pre, shift), reach in ((first, size * 2**14), (second, keys * 255 * 2**7)):
        ends = np.array([[-reach, reach]])
        bits = max(bits, _epilogues(ends, np.array([factor]), (pre, shift, -128, 127), "int8"))
    return bits


def _norm(look: _Look) -> int:
    types = (f"{look.view(0).dtype}_t", f"{look.made.dtype}_t")
    return _row_kernel(look, 1, RowOp.LAYER_NORM, look.view(0).shape[-1], types)


def _softmax(look: _Look) -> int:
    (size,) = look.numbers(1, 2)
    if look.made.dtype not in ("int8", "int16") or prod(look.made.shape) % max(size, 1):
        raise JudgeError(f"rows of {size} do not fill {look.made.shape} of {look.made.dtype}.")
    return max(17, _row_kernel(look, 2, RowOp.SOFTMAX, size, ("int8_t", "uint8_t")))


def _gelu(look: _Look) -> int:
    (length,) = look.numbers(2)
    if length < 1 or prod(look.made.shape) % length or look.made.shape != look.view(0).shape:
        raise JudgeError(f"rows of {length} do not fill {look.made.shape}.")
    types = (f"{look.view(0).dtype}_t", f"{look.made.dtype}_t")
    return _row_kernel(look, 1, RowOp.GELU, length, types)


def _table(look: _Look) -> int:
    if look.table(1).size != 256 or look.view(1).dtype != "int8" or look.view(0).dtype != "int8":
        raise JudgeError("a table that has not one entry of 8 bits for each number of 8 bits.")
    return 9


def _same(look: _Look) -> int:
    views = [value for value in look.op.arguments if isinstance(value, View)]
    if any(view.dtype != look.made.dtype for view in views):
        raise JudgeError("copies a value into another type.")
    return _limits(look.made)[1].bit_length() + 1


_RULES: Final[Mapping[str, Callable[[_Look], int]]] = {
    **{f"micro.q_{name}": _layer for name in ("conv2d", "conv2d_add", "linear", "linear_add")},
    **{
        f"micro.{name}": _same
        for name in ("cat", "gather", "put_rows", "q_max_pool2d", "q_relu_int8", "q_relu_int16")
    },
    "micro.q_add": _sum,
    "micro.q_add_rows": _sum,
    "micro.q_attention": _attention,
    "micro.q_avg_pool2d": _average,
    "micro.q_gelu": _gelu,
    "micro.q_layer_norm": _norm,
    "micro.q_mean_rows": _average,
    "micro.q_narrow": _convert,
    "micro.q_softmax": _softmax,
    "micro.q_table": _table,
    "micro.q_widen": _convert,
}
