"""The table of rules: what equals what, and on which condition.

Most rules are two patterns. A product or a sum of two tensors matches in both orders, and numbers match to
1e-12. Other rules are functions that yield what they found: pairs of a class and its equal. Rules hold up to
rounding, for numbers that are no ties and not NaN. `benchmarks.forms.prove` proves every one by numbers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from tightrope.core import TightropeError
from tightrope_forms.pooling.ops import MOST_PLACES, POOL
from tightrope_forms.rewrite.egraph import GETITEM, ClassId, EGraph, Rewrites, Spec, aten

Pairs: TypeAlias = Iterator[list[tuple[ClassId, ClassId]]]
Match: TypeAlias = dict[str, Any]
"""What variables of a pattern stand for: classes and options."""


class Var(NamedTuple):
    """The same tensor, option, or rest of the arguments, wherever it stands in a pattern."""

    name: str
    kind: str = "tensor"


class Term(NamedTuple):
    """One of some ops on patterns; what is made is the first of them."""

    ops: tuple[Any, ...]
    args: tuple[Any, ...]
    named: dict[str, Any]


RULES: Final[dict[str, Rewrites]] = {}
LEFT: Final[dict[str, Term]] = {}  # of rules that are patterns: what they look for


def rule(name: str) -> Callable[[Rewrites], Rewrites]:
    """Enter a function into the table."""
    return lambda apply: RULES.setdefault(name, apply)


def _equal(name: str, left: Term, right: Any) -> None:
    """Enter a rule of two patterns: what is found, and what equals it, or a function that says so or None."""

    @rule(name)
    def apply(g: EGraph) -> Pairs:
        for one in list(g.nodes):
            for match in _matches(g, left, one, {}) if one in g.nodes else ():
                equal = right(g, match) if callable(right) else right
                if equal is not None:
                    with suppress(TightropeError):  # an op does not run on such tensors
                        yield [(one, build(g, equal, match))]

    LEFT[name] = left


def build(g: EGraph, pattern: Any, match: Match) -> Any:
    """Make what a pattern says, of what its variables stand for."""
    if isinstance(pattern, Var):
        return match[pattern.name]
    if not isinstance(pattern, Term):
        return pattern
    args, rest = list(pattern.args), []
    if args and isinstance(args[-1], Var) and args[-1].kind == "rest":
        rest = match[args.pop().name]
    return g.make(pattern.ops[0], *(build(g, one, match) for one in args), *rest, **pattern.named)


def _matches(g: EGraph, pattern: Any, given: Any, match: Match) -> Iterator[Match]:
    """Yield every way in which a class or an option is a pattern."""
    if isinstance(pattern, Term):
        for args, named in g.by(given, *pattern.ops) if isinstance(given, ClassId) else ():
            if named == pattern.named:
                yield from _all_match(g, pattern.args, args, match)
                if pattern.ops[0] in (_MUL, _ADD) and _plain(args, named):
                    yield from _all_match(g, pattern.args, args[::-1], match)
    elif isinstance(pattern, Var):
        tensor = isinstance(given, ClassId)
        if tensor == (pattern.kind == "tensor") and match.get(pattern.name, given) == given:
            yield {**match, pattern.name: given}
    elif pattern == given or (
        _number(pattern) and _number(given) and math.isclose(pattern, given, rel_tol=1e-12)
    ):
        yield match


def _all_match(g: EGraph, patterns: tuple[Any, ...], given: list[Any], match: Match) -> Iterator[Match]:
    """Yield every way in which arguments are patterns, one by one."""
    if patterns and isinstance(patterns[0], Var) and patterns[0].kind == "rest":
        yield {**match, patterns[0].name: given}
    elif patterns and given:
        for found in _matches(g, patterns[0], given[0], match):
            yield from _all_match(g, patterns[1:], given[1:], found)
    elif not patterns and not given:
        yield match


_MUL, _ADD, _DIV = aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor
_LINEAR, _CONV = aten.linear.default, aten.conv2d.default
_SPLIT, _RELU, _CAT = aten.split_with_sizes.default, aten.relu.default, aten.cat.default
_NORM = aten.batch_norm.default


def _op(*ops: Any) -> Callable[..., Term]:
    return lambda *args, **named: Term(ops, args, named)


_mul, _add, _div, _exp, _neg = _op(_MUL), _op(_ADD), _op(_DIV), _op(aten.exp.default), _op(aten.neg.default)
_linear, _matmul, _relu = _op(_LINEAR), _op(aten.matmul.default), _op(_RELU)
_sigmoid, _pow, _transpose = _op(aten.sigmoid.default), _op(aten.pow.Tensor_Scalar), _op(aten.transpose.int)
_softmax, _log_softmax, _rms = _op(aten.softmax.int), _op(aten.log_softmax.int), _op(aten.rms_norm.default)
_gelu, _pool = _op(aten.gelu.default), _op(aten.max_pool2d.default)
_reshape = _op(aten.reshape.default, aten.view.default, aten._unsafe_view.default)
_x, _y, _v, _w, _rest = Var("x"), Var("y"), Var("v"), Var("w"), Var("rest", "rest")
_CUBIC = _add(_x, _mul(_pow(_x, 3), 0.044715))
_a, _b, _c, _d = (Var(name, "option") for name in "abcd")


def _shape(g: EGraph, one: Any) -> tuple[int, ...]:
    value = g.values[g.find(one)]
    assert isinstance(value, Spec)
    return value.shape


def _number(one: Any) -> bool:
    return isinstance(one, int | float) and not isinstance(one, ClassId | bool)


def _last(g: EGraph, one: ClassId, *dims: int) -> bool:
    return dims in ((-1,), (len(_shape(g, one)) - 1,))


def _plain(given: list[Any], named: dict[str, Any]) -> bool:
    """Two tensors, and no ``alpha`` or other option."""
    return len(given) == 2 and not named and all(isinstance(one, ClassId) for one in given)


_equal("x / a = x (1 / a)", _div(_x, _a), lambda g, m: _mul(_x, 1 / m["a"]) if abs(m["a"]) > 1e-30 else None)
_equal("(x a) b = x (a b)", _mul(_mul(_x, _a), _b), lambda g, m: _mul(_x, float(m["a"] * m["b"])))
_equal("x * sigmoid(x) = silu(x)", _mul(_x, _sigmoid(_x)), _op(aten.silu.default)(_x))
_equal("1 / (1 + exp(-x)) = sigmoid(x)", _op(aten.reciprocal.default)(_add(_exp(_neg(_x)), 1)), _sigmoid(_x))
_equal(
    "0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = gelu(x)",
    _mul(_mul(_x, 0.5), _add(_op(aten.tanh.default)(_mul(_CUBIC, math.sqrt(2 / math.pi))), 1)),
    _gelu(_x, approximate="tanh"),
)
_equal(
    "0.5 x (1 + erf(x / sqrt(2))) = gelu(x)",
    _mul(_mul(_x, 0.5), _add(_op(aten.erf.default)(_mul(_x, math.sqrt(0.5))), 1)),
    _gelu(_x),
)


def _normed(g: EGraph, m: Match) -> Term | None:
    size = list(_shape(g, m["x"])[-1:])
    return _rms(_x, size, None, float(m["b"])) if _last(g, m["x"], *m["a"]) else None


_equal(
    "x rsqrt(mean(x^2) + e) = rms_norm(x)",
    _mul(_x, _op(aten.rsqrt.default)(_add(_op(aten.mean.dim)(_pow(_x, 2), _a, True), _b))),
    _normed,
)
_equal(
    "rms_norm(x) w = rms_norm(x, w)",
    _mul(_rms(_x, _a, None, _b), _w),
    lambda g, m: _rms(_x, _a, _w, _b) if list(_shape(g, m["w"])) == m["a"] else None,
)
_SCORES = _mul(_matmul(_x, _transpose(_y, _a, _b)), _c)


def _heads(g: EGraph, m: Match) -> Term | None:
    """Attention takes four dimensions, of which the first two are equal, and a mask without a gradient."""
    x, y, v = (_shape(g, m[name]) for name in "xyv")
    turned = len(v) == 4 and {m["a"] % 4, m["b"] % 4} == {2, 3} and _last(g, m["v"], m["d"])
    if not turned or not x[:2] == y[:2] == v[:2] or ("w" in m and g.values[g.find(m["w"])].grad):
        return None
    return _op(aten.scaled_dot_product_attention.default)(
        _x, _y, _v, _w if "w" in m else None, 0.0, False, scale=float(m["c"])
    )


_equal("softmax(q k' s) v = attention(q, k, v)", _matmul(_softmax(_SCORES, _d), _v), _heads)
_equal("softmax(q k' s + m) v = attention(q, k, v)", _matmul(_softmax(_add(_SCORES, _w), _d), _v), _heads)
_equal("log(softmax(x)) = log_softmax(x)", _op(aten.log.default)(_softmax(_x, _a)), _log_softmax(_x, _a))
_equal(
    "x - logsumexp(x) = log_softmax(x)",
    _op(aten.sub.Tensor)(_x, _op(aten.logsumexp.default)(_x, _a, True)),
    lambda g, m: _log_softmax(_x, m["a"][0]) if len(m["a"]) == 1 else None,
)
_equal("max_pool(relu(x)) = relu(max_pool(x))", _pool(_relu(_x), _rest), _relu(_pool(_x, _rest)))


def _small_places(g: EGraph, m: Match) -> Term | None:
    """Know the places of maxima by a byte each, where windows are small and numbers lie row by row."""
    given: list[Any] = m["rest"]
    kernel, stride, padding, dilation, up = [*given, *[given[0], [0], [1], False][len(given) - 1 :]]
    window = [list(one) * (2 // len(one)) for one in (kernel, stride or kernel, padding)]
    value = g.values[g.find(m["x"])]
    plain = set(dilation) == {1} and not up and math.prod(window[0]) <= MOST_PLACES
    if not plain or not value.grad or value.dtype not in (torch.float32, torch.float64) or not value.dense:
        return None
    return Term((GETITEM,), (Term((POOL,), (_x, *window), {}), 0), {})


_equal("max_pool(x) = max_pool(x) that keeps a byte", _pool(_x, _rest), _small_places)
_equal("relu(relu(x)) = relu(x)", _relu(_relu(_x)), _relu(_x))
_equal("add(a, b) = add(b, a)", _add(_x, _y), _add(_y, _x))
_equal(
    "x A' + x B' = x (A + B)'",
    _add(_linear(_x, _v), _linear(_x, _w)),
    lambda g, m: _linear(_x, _add(_v, _w)) if m["v"] != m["w"] else None,
)
_equal(
    "(x A) B = x (A B)",
    _matmul(_matmul(_x, _v), _w),
    lambda g, m: _matmul(_x, _matmul(_v, _w)) if all(len(_shape(g, m[k])) == 2 for k in "xvw") else None,
)
_equal(
    "(x s) A' = x (A s)'",
    _linear(_mul(_x, _y), _w, _rest),
    lambda g, m: _linear(_x, _mul(_w, _y), _rest) if _shape(g, m["y"]) == _shape(g, m["x"])[-1:] else None,
)


def _turned_back(g: EGraph, m: Match) -> Var | None:
    dims = len(_shape(g, m["x"]))
    return _x if {m["a"] % dims, m["b"] % dims} == {m["c"] % dims, m["d"] % dims} else None


_equal("transpose(transpose(x)) = x", _transpose(_transpose(_x, _a, _b), _c, _d), _turned_back)
_equal("reshape(reshape(x)) = reshape(x)", _reshape(_reshape(_x, _a), _b), _reshape(_x, _b))
_equal("reshape(x) = x", _reshape(_x, _a), lambda g, m: _x if list(_shape(g, m["x"])) == m["a"] else None)


@rule("to(x, its type) = x")
def _typed(g: EGraph) -> Pairs:
    for one, given, _ in g.all_by(aten.to.dtype, aten.to.dtype_layout):
        if g.values[g.find(given[0])][::2] == g.values[one][::2]:
            yield [(one, given[0])]


@rule("cat(relu(a), relu(b)) = relu(cat(a, b))")
def _relu_cat(g: EGraph) -> Pairs:
    for one, (parts, *dim), _ in g.all_by(_CAT):
        inner = [next((given[0] for given, _ in g.by(part, _RELU)), None) for part in parts]
        if all(part is not None for part in inner):
            yield [(one, g.make(_RELU, g.make(_CAT, inner, *dim)))]


def _joined(g: EGraph, op: Any, dim: int) -> Pairs:
    """Join ops that multiply one value by several weights, and split the result."""
    found: dict[Any, dict[ClassId, tuple[Any, Any]]] = {}
    for one, (x, weight, *rest), named in g.all_by(op):
        bias, how = rest[0] if rest else None, rest[1:]
        grouped, read = how[3:] not in ([], [1]), any(True for _ in g.by(one, GETITEM))
        if not named and not grouped and not read:
            alike = x, bias is None, repr(how), _shape(g, weight)[2:]
            found.setdefault(alike, {})[one] = weight, [bias, *how]
    for (x, bare, *_), group in found.items():
        if len(group) > 1:
            weights, rests = zip(*group.values(), strict=True)
            bias = None if bare else g.make(_CAT, [rest[0] for rest in rests], 0)
            own = [bias, *rests[0][1:]]
            whole = g.make(op, x, g.make(_CAT, list(weights), 0), *(own if own != [None] else []))
            parts = g.make(_SPLIT, whole, [_shape(g, one)[0] for one in weights], dim)
            yield [(one, g.make(GETITEM, parts, at)) for at, one in enumerate(group)]


@rule("x A', x B' = split(x cat(A, B)')")
def _linears(g: EGraph) -> Pairs:
    return _joined(g, _LINEAR, -1)


@rule("conv(x, A), conv(x, B) = split(conv(x, cat(A, B)))")
def _convolutions(g: EGraph) -> Pairs:
    return _joined(g, _CONV, 1)


def _affine(g: EGraph, given: list[Any]) -> tuple[Any, Any] | None:
    """Say what a batch norm of fixed statistics multiplies by and adds."""
    _, scale, shift, mean, variance, training, _, eps, _ = given
    if training or mean is None or variance is None or len(_shape(g, given[0])) != 4:
        return None
    by = g.make(aten.rsqrt.default, g.make(_ADD, variance, eps))
    by = by if scale is None else g.make(_MUL, by, scale)
    moved = g.make(_MUL, mean, by)
    return by, g.make(aten.neg.default, moved) if shift is None else g.make(aten.sub.Tensor, shift, moved)


@rule("batch_norm(conv(x, A)) = conv(x, A s)")
def _folded_norm(g: EGraph) -> Pairs:
    for one, given, _ in g.all_by(_NORM):
        by, shift = _affine(g, given) or (None, None)
        for (x, weight, *rest), named in g.by(given[0], _CONV) if by is not None else ():
            with suppress(TightropeError):  # of other types
                scaled = g.make(_MUL, weight, g.make(aten.reshape.default, by, [-1, 1, 1, 1]))
                own = (
                    g.make(_ADD, g.make(_MUL, rest[0], by), shift) if rest and rest[0] is not None else shift
                )
                yield [(one, g.make(_CONV, x, scaled, own, *rest[1:], **named))]


@rule("batch_norm(x) = conv(x, s)")  # which a sum with another convolution takes in
def _norm_conv(g: EGraph) -> Pairs:
    for one, given, _ in g.all_by(_NORM):
        summed = any(one in (a, b) for _, (a, b, *_), _ in g.all_by(_ADD))
        if summed and (fixed := _affine(g, given)):
            with suppress(TightropeError):  # of other types
                weight = g.make(aten.diag_embed.default, fixed[0])
                weight = g.make(aten.reshape.default, weight, [*_shape(g, weight), 1, 1])
                yield [(one, g.make(_CONV, given[0], weight, fixed[1]))]


@rule("conv(x, A) + conv(x, B) = conv(x, A + pad(B))")
def _conv_sum(g: EGraph) -> Pairs:
    for one, given, named in g.all_by(_ADD):
        for first, second in (given, given[::-1]) if _plain(given, named) else ():
            for (x, wide, bias, *how, pad), (y, small, other, *same, inset) in product(
                _convs(g, first), _convs(g, second)
            ):
                grown = [p - q for p, q in zip(pad, inset, strict=True)]
                sizes = zip(_shape(g, wide)[2:], _shape(g, small)[2:], grown, strict=True)
                fits = all(a - b == 2 * k >= 0 for a, b, k in sizes)
                alike = (x, how, bias is None) == (y, same, other is None) and wide != small
                if fits and alike:
                    padded = g.make(aten.pad.default, small, [grown[1], grown[1], grown[0], grown[0]])
                    weight = g.make(_ADD, wide, padded if any(grown) else small)
                    summed = None if bias is None else g.make(_ADD, bias, other)
                    yield [(one, g.make(_CONV, x, weight, summed, *how, pad))]


def _convs(g: EGraph, one: ClassId) -> Iterator[list[Any]]:
    """Yield the arguments of plain convolutions: input, weight, bias, stride, padding."""
    for given, named in g.by(one, _CONV):
        whole = [*given, *[None, [1, 1], [0, 0], [1, 1], 1][len(given) - 2 :]]
        if not named and whole[5:] == [[1, 1], 1] and not any(isinstance(part, str) for part in whole):
            yield whole[:5]
