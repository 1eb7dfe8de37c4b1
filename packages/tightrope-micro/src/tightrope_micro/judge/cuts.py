"""Check that a step whose maps and weights are cut computes what the whole step computes.

Idea        Both graphs are run op by op on random numbers of a finite field. Dense layers and convolutions
            are what they are, so that sums over parts come out; all else is an unknown function: of one
            element of every argument, of a channel, or of everything that an op reads.
Source      Uninterpreted functions, and Schwartz 1980 for sums of products at random points
Guarantee   Two graphs that pass give the same loss, and leave the same in everything that the caller holds,
            whatever ReLU, norms and updates compute, but for chance: an element that differs is equal with a
            probability of about 1 in 131,071. An order of additions is not checked.
Complexity  Each multiply-accumulate of both graphs once.
Gaps        Convolutions in groups have to be whole.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Bytes, Graph, Items, JudgeError, Op, StorageId, View
from tightrope.core.values import EMPTY, ITEM_BYTES

_FIELD: Final = 2**17 - 1
"""A prime: sums of 2^19 products of two numbers below it are exact in float64."""
_MOST: Final = 2**19
_EIGHT: Final = 8
Numbers: TypeAlias = NDArray[np.int64]


def check_cuts(whole: Graph, cut: Graph, held: Mapping[StorageId, tuple[StorageId, Bytes]]) -> None:
    """Check a graph whose maps and weights are cut against the graph that it was made from.

    Args:
        whole: of one part, of ops of the C library.
        cut: that computes the same.
        held: storage of the caller in ``cut`` -> of which in ``whole`` it is a part, and its first byte.

    Raises:
        JudgeError: says what differs.
    """
    before, after = _Run(whole), _Run(cut)
    inputs = {g.view.base: g.view for g in whole.parts[0].inputs if g.view is not None}
    before.held = {storage: _drawn(storage, prod(view.shape)) for storage, view in inputs.items()}
    for given in cut.parts[0].inputs:
        if given.view is not None:
            after.held[given.view.base] = _part(before.held, given.view, held).copy()
    for run in (before, after):
        for op in run.graph.ops:
            run.take(op)
    for given in cut.parts[0].inputs:
        if given.view is not None:
            of = held[given.view.base][0]
            if not np.array_equal(after.held[given.view.base], _part(before.held, given.view, held)):
                name = whole.storages[of].module or whole.storages[of].label
                raise JudgeError(
                    f"the step that is cut leaves something else in {name!r} than the whole one."
                )
    ends = [
        [run.look(v) for v in run.graph.parts[0].outputs if isinstance(v, View)] for run in (before, after)
    ]
    if len(ends[0]) != len(ends[1]) or not all(map(np.array_equal, *ends)):
        raise JudgeError("the step that is cut returns something else than the whole one.")


def _part(
    values: Mapping[StorageId, Numbers], view: View, held: Mapping[StorageId, tuple[StorageId, Bytes]]
) -> Numbers:
    of, first = held[view.base]
    at = first // ITEM_BYTES[view.dtype]
    return values[of][at : at + prod(view.shape)]


def _drawn(seed: int, count: int) -> Numbers:
    return _hashed(seed, [np.arange(count, dtype=np.int64)])


def _hashed(salt: int, values: Sequence[Numbers]) -> Numbers:
    """An unknown function of each element: numbers of the field that look random."""
    with np.errstate(over="ignore"):
        found = np.full(np.broadcast_shapes(*(v.shape for v in values)), salt, np.uint64)
        for value in values:
            found = (found ^ value.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            found ^= found >> np.uint64(29)
            found *= np.uint64(0xBF58476D1CE4E5B9)
            found ^= found >> np.uint64(32)
    return (found % np.uint64(_FIELD)).astype(np.int64)


def _folded(salt: int, values: Numbers) -> Numbers:
    """An unknown function of all numbers of each row."""
    mixed = _hashed(salt, [values, np.arange(values.shape[1], dtype=np.int64)])
    found: Numbers = _hashed(salt, [mixed.sum(1)])
    return found


def _product(left: Numbers, right: Numbers) -> Numbers:
    """A matrix product in the field."""
    if left.shape[-1] > _MOST:
        raise JudgeError(f"sums of {left.shape[-1]} products are too long for this check.")
    found = np.asarray(left, np.float64) @ np.asarray(right, np.float64)
    return (found % _FIELD).astype(np.int64)


def _name(op: Op) -> str:
    return op.target.removeprefix("micro.").removesuffix(".into").removesuffix(".over")


def _salt(op: Op) -> int:
    """One number for the op and all of its arguments that are no tensors."""
    plain = tuple(None if isinstance(v, View) else v for v in op.arguments)
    return crc32(repr((_name(op), plain)).encode())


class _Run:
    """One graph while it runs.

    Attributes:
        held: storage -> its numbers, in the order in which they lie.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.held: dict[StorageId, Numbers] = {}

    def look(self, view: View) -> Numbers:
        """The numbers that a view sees; what is written to them is written to the storage."""
        if view.base == EMPTY:
            return np.zeros(view.shape, np.int64)
        base = self.held[view.base]
        if view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) >= len(base):
            raise JudgeError(f"a view of {list(view.shape)} ends behind its storage.")
        steps = [stride * base.itemsize for stride in view.strides]
        found: Numbers = np.lib.stride_tricks.as_strided(base[view.offset :], view.shape, steps)
        return found

    def take(self, op: Op) -> None:
        """Run an op."""
        for at, result in enumerate(op.results):  # garbage until it is written
            self.held[result.view.base] = _drawn(_FIELD + at, prod(result.view.shape))
        values = [self.look(v) if isinstance(v, View) else None for v in op.arguments]
        name = _name(op)
        kind = name.removesuffix("_sgd").removesuffix("_adamw")
        if kind in _LINEAR and not (kind.startswith("conv2d") and self._in_groups(op)):
            _LINEAR[kind](self, op, values)
        elif kind in _BY_ELEMENT:
            self._by_element(op, values)
        elif kind in _BY_CHANNEL and not (kind in _NORMS and values[0] is not None and values[0].ndim == 2):
            self._by_channel(op, kind, values)
        else:
            self._opaque(op, values)

    def _in_groups(self, op: Op) -> bool:
        """Whether a convolution connects only some channels."""
        return next(v for v in op.arguments if isinstance(v, int) and not isinstance(v, bool)) != 1

    def made(self, op: Op) -> Numbers:
        """What an op writes to."""
        into = dict(op.keywords).get("out")
        return self.look(into if isinstance(into, View) else op.results[0].view)

    def update(self, op: Op, gradient: Numbers, salt: int, part: Callable[[Numbers], Numbers]) -> None:
        """Change a weight and its state by an unknown function of them and of the gradient, by element."""
        views = [v for v in op.arguments if isinstance(v, View) and v.base in op.mutates]
        parts = [part(self.look(view)) for view in views]
        old = [one.copy() for one in parts]
        for at, one in enumerate(parts):
            one[...] = _hashed(salt + at, [gradient.reshape(one.shape), *old])

    def rates_salt(self, op: Op, values: Sequence[Numbers | None], first: int) -> int:
        """The salt of an update, with the numbers that AdamW reads behind its weight."""
        salt = _salt(op)
        for view, value in zip(op.arguments[first:], values[first:], strict=True):
            if isinstance(view, View) and view.base not in op.mutates and value is not None:
                salt = int(_folded(salt, value.reshape(1, -1))[0])
        return salt

    def _by_element(self, op: Op, values: list[Numbers | None]) -> None:
        """ReLU and its gradient, sums, signs, and updates from a gradient that is there."""
        kind = _name(op).removesuffix("_sgd").removesuffix("_adamw")
        flat = [None if v is None else v.reshape(-1) for v in values]
        if kind == "vector":
            gradient = flat[0]
            assert gradient is not None
            self.update(op, gradient, self.rates_salt(op, values, 1), lambda one: one)
            return
        one, *rest = [v for v in flat if v is not None]
        if kind == "add":
            found = (one + rest[0]) % _FIELD
        elif kind == "signs":
            padded = np.concatenate([one, np.zeros(-len(one) % _EIGHT, np.int64)])
            found = _folded(_salt(op), padded.reshape(-1, _EIGHT))
        elif kind == "signs_backward":
            at = np.arange(len(one))
            found = _hashed(_salt(op), [one, rest[0][at // _EIGHT], at % _EIGHT])
        else:
            found = _hashed(_salt(op), [one, *rest])
        out = self.made(op)
        out[...] = found.reshape(out.shape)

    def _by_channel(self, op: Op, kind: str, values: list[Numbers | None]) -> None:
        """Batch norm, its gradients and running statistics, and sums over channels."""
        salt, views = _salt(op), [v for v in values if v is not None]
        if kind == "batch_norm_running":
            stats, *both = views
            for at, one in enumerate(both):
                one[...] = _hashed(salt + at, [stats[at], one])
            return
        if kind == "channel_sum":
            sums = _folded(salt, _channels(views[0]))
            self.update(op, sums, self.rates_salt(op, values, 1), lambda one: one)
            return
        maps = [_channels(v) for v in views if v.ndim > 2]
        rows = [row for v in views if v.ndim <= 2 for row in np.atleast_2d(v)]
        out = self.made(op)
        if kind in ("batch_norm_stats", "batch_norm_sums"):
            whole = np.concatenate(maps, axis=1)
            for at in range(2):
                out[at] = _hashed(salt + at, [_folded(salt, whole), *rows])
            return
        found = _hashed(salt, [*maps, *(row[:, None] for row in rows)])
        count = found.shape[0]
        apart = found.reshape(count, out.shape[0], *out.shape[2:])
        out[...] = np.moveaxis(apart, 0, 1)

    def _opaque(self, op: Op, values: list[Numbers | None]) -> None:
        """Anything else: an unknown function of all that it reads."""
        if op.keywords:
            raise JudgeError(f"{op.describe()} is cut, which this check does not know.")
        salt = _salt(op)
        for value in values:
            salt = salt if value is None else int(_folded(salt, value.reshape(1, -1))[0]) + 1
        changed = [v for v in op.arguments if isinstance(v, View) and v.base in op.mutates]
        for at, view in enumerate([*(r.view for r in op.results), *changed]):
            one = self.look(view)
            one[...] = _hashed(salt, [np.arange(one.size) + at * _FIELD]).reshape(one.shape)


def _channels(values: Numbers) -> Numbers:
    """All numbers of each channel."""
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)


def _rows_of(op: Op, own: int) -> tuple[int, int]:
    """First row of the whole weight that an op has, and how many there are."""
    named = dict(op.keywords)
    first, rows = named.get("first", 0), named.get("rows", own)
    assert isinstance(first, int)
    assert isinstance(rows, int)
    return first, rows


def _linear(run: _Run, op: Op, values: list[Any]) -> None:
    x, w, b = values
    out, (first, _) = run.made(op), _rows_of(op, len(w))
    here = slice(first, first + len(w))
    found = _product(x, w.T) + (0 if b is None else b[here])
    out[:, here] = found % _FIELD


def _linear_input(run: _Run, op: Op, values: list[Any]) -> None:
    g, w = values[:2]
    out, (first, _) = run.made(op), _rows_of(op, len(w))
    found = _product(g[:, first : first + len(w)], w)
    out[...] = (found + (out if "out" in dict(op.keywords) else 0)) % _FIELD


def _linear_weight(run: _Run, op: Op, values: list[Any]) -> None:
    g, x, w = values[:3]
    first, _ = _rows_of(op, len(w))
    gradient = _product(g[:, first : first + len(w)].T, x)
    run.update(op, gradient, run.rates_salt(op, values, 3), lambda one: one)


class _Geometry:
    """Where the elements of a convolution lie, and which channels of the weight are meant."""

    def __init__(self, op: Op, weight: Numbers, at: int) -> None:
        (self.stride, self.padding) = (
            tuple(n for n in v.items if isinstance(n, int))
            for v in op.arguments[at : at + 2]
            if isinstance(v, Items)
        )
        named = dict(op.keywords)
        first, _ = _rows_of(op, len(weight))
        skip, every = named.get("channel", 0), named.get("channels", weight.shape[1])
        assert isinstance(skip, int)
        assert every == weight.shape[1]
        self.rows, self.skip = slice(first, first + len(weight)), skip
        self.added = bool(named.get("added", 0))

    def windows(self, x: Numbers, out: Sequence[int], weight: Numbers) -> Any:
        """For each element of the kernel, the elements of a padded map that it meets."""
        (sh, sw), (oh, ow) = self.stride, out
        for ky in range(weight.shape[2]):
            for kx in range(weight.shape[3]):
                yield ky, kx, x[:, ky : ky + (oh - 1) * sh + 1 : sh, kx : kx + (ow - 1) * sw + 1 : sw]

    def padded(self, image: Numbers, out: Sequence[int], weight: Numbers) -> Numbers:
        """A map of one image with zeros around it, as far as a window of any element of the result ends."""
        ends = [
            max(0, (count - 1) * stride + window - size - before)
            for count, stride, window, size, before in zip(
                out, self.stride, weight.shape[2:], image.shape[1:], self.padding, strict=True
            )
        ]
        (ph, pw) = self.padding
        return np.pad(image, ((0, 0), (ph, ends[0]), (pw, ends[1])))


def _conv(run: _Run, op: Op, values: list[Any]) -> None:
    x, w, b = values[:3]
    there, out = _Geometry(op, w, 3), run.made(op)
    some = w[:, there.skip : there.skip + x.shape[1]]
    for image, made in zip(x, out, strict=True):
        here = made[there.rows]
        found = here.copy() if there.added else np.zeros(here.shape, np.int64)
        found += 0 if b is None else b[there.rows][:, None, None]
        for ky, kx, met in there.windows(there.padded(image, here.shape[1:], w), here.shape[1:], w):
            found += _product(some[:, :, ky, kx], met.reshape(len(met), -1)).reshape(here.shape)
        here[...] = found % _FIELD


def _conv_input(run: _Run, op: Op, values: list[Any]) -> None:
    g, w = values[:2]
    there, out = _Geometry(op, w, 2), run.made(op)
    some, (ph, pw), (height, width) = w[:, there.skip :], there.padding, out.shape[2:]
    for image, made in zip(g, out, strict=True):
        from_ = image[there.rows].reshape(len(w), -1)
        whole = there.padded(made if "out" in dict(op.keywords) else np.zeros_like(made), g.shape[2:], w)
        for ky, kx, met in there.windows(whole, g.shape[2:], w):
            met += _product(some[:, : len(made), ky, kx].T, from_).reshape(met.shape)
        made[...] = whole[:, ph : ph + height, pw : pw + width] % _FIELD


def _conv_weight(run: _Run, op: Op, values: list[Any]) -> None:
    g, x, w = values[:3]
    there = _Geometry(op, w, 4)
    some = slice(there.skip, there.skip + x.shape[1])
    gradient = np.zeros((len(w), x.shape[1], *w.shape[2:]), np.int64)
    for of, image in zip(g, x, strict=True):
        from_ = of[there.rows].reshape(len(w), -1)
        for ky, kx, met in there.windows(there.padded(image, g.shape[2:], w), g.shape[2:], w):
            gradient[:, :, ky, kx] += _product(from_, met.reshape(len(met), -1).T)
    run.update(op, gradient % _FIELD, run.rates_salt(op, values, 4), lambda one: one[:, some])


_LINEAR: Final[Mapping[str, Callable[[_Run, Op, list[Any]], None]]] = {
    "conv2d": _conv,
    "conv2d_input": _conv_input,
    "conv2d_weight": _conv_weight,
    "linear": _linear,
    "linear_input": _linear_input,
    "linear_weight": _linear_weight,
}
_BY_ELEMENT: Final = ("add", "relu", "relu_backward", "signs", "signs_backward", "vector")
_NORMS: Final = ("batch_norm", "batch_norm_input", "batch_norm_stats", "batch_norm_sums")
_BY_CHANNEL: Final = (*_NORMS, "batch_norm_running", "channel_sum")
