"""The table of rules: what equals what, on which condition, and an example to prove it on.

A rule takes an `EGraph` and yields what it found: pairs of a class and its equal. Its example makes the
left side, of random sizes and options. `tightrope_forms.rewrite.prove` applies the rule to it.
Rules hold up to rounding, for numbers that are no ties and not NaN.
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from tightrope_forms.rewrite.egraph import GETITEM, ClassId, EGraph, Rewrites, Spec, aten

Draw: TypeAlias = Callable[..., ClassId]
"""Makes a leaf of a shape."""
Example: TypeAlias = Callable[[EGraph, Draw, random.Random], ClassId]
Pairs: TypeAlias = Iterator[list[tuple[ClassId, ClassId]]]


class RewriteRule(NamedTuple):
    """A rule and the example that it is proved on."""

    apply: Rewrites
    example: Example


RULES: Final[dict[str, RewriteRule]] = {}


def rule(name: str, example: Example) -> Callable[[Rewrites], Rewrites]:
    """Enter a rule into the table."""

    def enter(apply: Rewrites) -> Rewrites:
        RULES[name] = RewriteRule(apply, example)
        return apply

    return enter


_MUL, _ADD, _DIV = aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor
_LINEAR, _CONV, _SDPA = aten.linear.default, aten.conv2d.default, aten.scaled_dot_product_attention.default
_RELU, _CAT = aten.relu.default, aten.cat.default
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_ROOT = math.sqrt(2 / math.pi)


def _shape(g: EGraph, one: Any) -> tuple[int, ...]:
    value = g.values[g.find(one)]
    assert isinstance(value, Spec)
    return value.shape


def _sizes(r: random.Random, dims: int = 2) -> list[int]:
    return [r.randint(1, 5) for _ in range(dims)]


def _number(one: Any) -> bool:
    return isinstance(one, int | float) and not isinstance(one, ClassId)


def _plain(given: list[Any], named: dict[str, Any]) -> bool:
    """Two tensors, and no ``alpha`` or other option."""
    return len(given) == 2 and not named and all(isinstance(one, ClassId) for one in given)


def _scaled(g: EGraph, one: ClassId, by: float | None = None) -> Iterator[tuple[ClassId, float]]:
    """Yield what a class is a multiple of, and by which number."""
    for _, (x, factor), _ in g.by(one, _MUL):
        if _number(factor) and (by is None or math.isclose(factor, by, rel_tol=1e-12)):
            yield x, factor
    for _, given, named in g.by(one, _DIV):
        if not named and _number(given[1]) and given[1]:
            factor = 1 / given[1]
            if by is None or math.isclose(factor, by, rel_tol=1e-12):
                yield given[0], factor


def _plus(g: EGraph, one: ClassId, number: float | None = None) -> Iterator[tuple[ClassId, float]]:
    """Yield what a class is, less a number that was added."""
    for _, given, named in g.by(one, _ADD):
        if not named and _number(given[1]) and (number is None or given[1] == number):
            yield given[0], given[1]


def _products(g: EGraph, one: ClassId) -> Iterator[tuple[ClassId, ClassId]]:
    """Yield both orders of the factors of a class."""
    for _, given, named in g.by(one, _MUL):
        if _plain(given, named):
            yield given[0], given[1]
            yield given[1], given[0]


def _classes(g: EGraph) -> list[ClassId]:
    return [one for one in g.nodes if isinstance(g.values[one], Spec)]


@rule(
    "x * sigmoid(x) = silu(x)",
    lambda g, d, r: g.make(_MUL, x := d(*_sizes(r)), g.make(aten.sigmoid.default, x)),
)
def _silu(g: EGraph) -> Pairs:
    for one in _classes(g):
        for x, other in _products(g, one):
            if any(given[0] == x for _, given, _ in g.by(other, aten.sigmoid.default)):
                yield [(one, g.make(aten.silu.default, x))]


def _sigmoid_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    e = g.make(aten.exp.default, g.make(aten.neg.default, d(*_sizes(r))))
    return g.make(aten.reciprocal.default, g.make(_ADD, e, 1))


@rule("1 / (1 + exp(-x)) = sigmoid(x)", _sigmoid_example)
def _sigmoid(g: EGraph) -> Pairs:
    for one, (below,), _ in g.all_by(aten.reciprocal.default):
        for e, _ in _plus(g, below, 1):
            for _, (negative,), _ in g.by(e, aten.exp.default):
                for _, (x,), _ in g.by(negative, aten.neg.default):
                    yield [(one, g.make(aten.sigmoid.default, x))]


def _gelu_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    x = d(*_sizes(r))
    cube = g.make(_MUL, g.make(aten.pow.Tensor_Scalar, x, r.choice((3, 3.0))), 0.044715)
    t = g.make(aten.tanh.default, g.make(_MUL, g.make(_ADD, x, cube), _ROOT))
    return g.make(_MUL, g.make(_MUL, x, 0.5), g.make(_ADD, t, r.choice((1, 1.0))))


@rule("0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = gelu(x)", _gelu_example)
def _gelu(g: EGraph) -> Pairs:
    for one in _classes(g):
        for half, whole in _products(g, one):
            for x, _ in _scaled(g, half, 0.5):
                for t, _ in _plus(g, whole, 1):
                    for _, (inner,), _ in g.by(t, aten.tanh.default):
                        if any(_is_cubic(g, s, x) for s, _ in _scaled(g, inner, _ROOT)):
                            yield [(one, g.make(aten.gelu.default, x, approximate="tanh"))]


def _is_cubic(g: EGraph, one: ClassId, x: ClassId) -> bool:
    return any(
        given[0] == x and not named
        for _, given, named in g.by(one, _ADD) if isinstance(given[1], ClassId)
        for cube, _ in _scaled(g, given[1], 0.044715)
        for _, (base, power), _ in g.by(cube, aten.pow.Tensor_Scalar) if base == x and power == 3
    )  # fmt: skip


def _gelu_erf_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    x = d(*_sizes(r))
    inner = g.make(_DIV, x, math.sqrt(2)) if r.random() < 0.5 else g.make(_MUL, x, math.sqrt(0.5))
    return g.make(_MUL, g.make(_MUL, x, 0.5), g.make(_ADD, g.make(aten.erf.default, inner), 1.0))


@rule("0.5 x (1 + erf(x / sqrt(2))) = gelu(x)", _gelu_erf_example)
def _gelu_erf(g: EGraph) -> Pairs:
    for one in _classes(g):
        for half, whole in _products(g, one):
            for x, _ in _scaled(g, half, 0.5):
                for t, _ in _plus(g, whole, 1):
                    for _, (inner,), _ in g.by(t, aten.erf.default):
                        if any(base == x for base, _ in _scaled(g, inner, math.sqrt(0.5))):
                            yield [(one, g.make(aten.gelu.default, x))]


def _rms_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    x = d(*_sizes(r, r.randint(2, 4)))
    mean = g.make(aten.mean.dim, g.make(aten.pow.Tensor_Scalar, x, 2), [-1], True)
    made = g.make(_MUL, x, g.make(aten.rsqrt.default, g.make(_ADD, mean, r.choice((1e-6, 1e-3)))))
    return made if r.random() < 0.5 else g.make(_MUL, d(_shape(g, x)[-1]), made)


@rule("x rsqrt(mean(x^2) + e) = rms_norm(x)", _rms_example)
def _rms(g: EGraph) -> Pairs:
    for one in _classes(g):
        for x, factor in _products(g, one):
            for _, (below,), _ in g.by(factor, aten.rsqrt.default):
                for mean, eps in _plus(g, below):
                    if _is_mean_square(g, mean, x):
                        yield [(one, g.make(aten.rms_norm.default, x, [_shape(g, x)[-1]], None, float(eps)))]


def _is_mean_square(g: EGraph, mean: ClassId, x: ClassId) -> bool:
    return any(
        base == x and power == 2
        for _, given, named in g.by(mean, aten.mean.dim)
        if not named and len(given) == 3 and given[2] is True and given[1] in ([-1], [len(_shape(g, x)) - 1])
        for _, (base, power), _ in g.by(given[0], aten.pow.Tensor_Scalar)
    )


def _scaled_rms_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    x = d(*_sizes(r))
    norm = g.make(aten.rms_norm.default, x, [_shape(g, x)[-1]], None, 1e-5)
    return g.make(_MUL, norm, d(_shape(g, x)[-1]))


@rule("rms_norm(x) w = rms_norm(x, w)", _scaled_rms_example)
def _scaled_rms(g: EGraph) -> Pairs:
    for one in _classes(g):
        for norm, weight in _products(g, one):
            for _, given, named in g.by(norm, aten.rms_norm.default):
                if not named and given[2] is None and list(_shape(g, weight)) == given[1]:
                    yield [(one, g.make(aten.rms_norm.default, given[0], given[1], weight, given[3]))]


def _attention_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    b, h, t, s, width = _sizes(r, 5)
    q, k, v = d(b, h, t, width), d(b, h, s, width), d(b, h, s, width)
    scores = g.make(
        aten.matmul.default, q, g.make(aten.transpose.int, k, *r.choice(((-1, -2), (-2, -1), (2, 3))))
    )
    scores = g.make(r.choice((_MUL, _DIV)), scores, r.choice((0.5, 0.125, 3.0)))
    scores = g.make(_ADD, scores, d(t, s, grad=False)) if r.random() < 0.5 else scores
    return g.make(aten.matmul.default, g.make(aten.softmax.int, scores, -1), v)


@rule("softmax(q k' s + m) v = attention(q, k, v)", _attention_example)
def _attention(g: EGraph) -> Pairs:
    for one, (weights, v), _ in g.all_by(aten.matmul.default):
        if len(_shape(g, v)) != 4:
            continue
        for _, given, named in g.by(weights, aten.softmax.int):
            if named or len(given) > 2 or given[1] not in (-1, 3):
                continue
            options: list[tuple[ClassId, Any]] = [(given[0], None)]
            options += [
                (pair[0], pair[1]) for _, pair, other in g.by(given[0], _ADD)
                if _plain(pair, other) and not g.values[g.find(pair[1])].grad
            ]  # fmt: skip
            for scores, mask in options:
                for scored, scale in _scaled(g, scores):
                    for _, (q, turned), _ in g.by(scored, aten.matmul.default):
                        for _, (k, first, second), _ in g.by(turned, aten.transpose.int):
                            if {first % 4, second % 4} == {2, 3} and _shape(g, q)[:2] == _shape(g, k)[
                                :2
                            ] == _shape(g, v)[:2]:
                                made = g.make(_SDPA, q, k, v, mask, 0.0, False, scale=float(scale))
                                yield [(one, made)]


def _log_softmax_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    x = d(*_sizes(r))
    if r.random() < 0.5:
        return g.make(aten.log.default, g.make(aten.softmax.int, x, -1))
    return g.make(aten.sub.Tensor, x, g.make(aten.logsumexp.default, x, [1], True))


@rule("log(softmax(x)) = x - logsumexp(x) = log_softmax(x)", _log_softmax_example)
def _log_softmax(g: EGraph) -> Pairs:
    for one, (inner,), _ in g.all_by(aten.log.default):
        for _, given, named in g.by(inner, aten.softmax.int):
            if not named and len(given) == 2:
                yield [(one, g.make(aten.log_softmax.int, *given))]
    for one, given, named in g.all_by(aten.sub.Tensor):
        if _plain(given, named):
            for _, (x, dims, *keep), _ in g.by(given[1], aten.logsumexp.default):
                if x == given[0] and len(dims) == 1 and keep == [True]:
                    yield [(one, g.make(aten.log_softmax.int, x, dims[0]))]


def _relu_cat_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    sizes, dim = _sizes(r, 3), r.randint(0, 2)
    parts = [d(*sizes[:dim], r.randint(1, 4), *sizes[dim + 1 :]) for _ in range(r.randint(2, 4))]
    return g.make(_CAT, [g.make(_RELU, one) for one in parts], dim)


@rule("cat(relu(a), relu(b)) = relu(cat(a, b))", _relu_cat_example)
def _relu_cat(g: EGraph) -> Pairs:
    for one, (parts, *dim), _ in g.all_by(_CAT):
        inner = [next((given[0] for _, given, _ in g.by(part, _RELU)), None) for part in parts]
        if all(part is not None for part in inner):
            yield [(one, g.make(_RELU, g.make(_CAT, inner, *dim)))]


@rule(
    "max_pool(relu(x)) = relu(max_pool(x))",
    lambda g, d, r: g.make(
        aten.max_pool2d.default, g.make(_RELU, d(1, r.randint(1, 3), 8, 8)), [r.choice((2, 3))] * 2, [2, 2]
    ),
)
def _relu_pool(g: EGraph) -> Pairs:
    for one, (inner, *options), _ in g.all_by(aten.max_pool2d.default):
        for _, (x,), _ in g.by(inner, _RELU):
            yield [(one, g.make(_RELU, g.make(aten.max_pool2d.default, x, *options)))]


@rule("relu(relu(x)) = relu(x)", lambda g, d, r: g.make(_RELU, g.make(_RELU, d(*_sizes(r)))))
def _relu_relu(g: EGraph) -> Pairs:
    for one, (inner,), _ in g.all_by(_RELU):
        if any(True for _ in g.by(inner, _RELU)):
            yield [(one, inner)]


@rule("add(a, b) = add(b, a)", lambda g, d, r: g.make(_ADD, d(*(s := _sizes(r))), d(*s)))
def _add_turned(g: EGraph) -> Pairs:
    for one, given, named in g.all_by(_ADD):
        if _plain(given, named):
            yield [(one, g.make(_ADD, given[1], given[0]))]


@rule(
    "(x a) b = x (a b)",
    lambda g, d, r: g.make(_MUL, g.make(_MUL, d(*_sizes(r)), r.random()), r.uniform(1, 2)),
)
def _scales(g: EGraph) -> Pairs:
    for one, (inner, second), _ in g.all_by(_MUL):
        if _number(second):
            for x, first in _scaled(g, inner):
                yield [(one, g.make(_MUL, x, float(first * second)))]


def _linears_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    rows, width = _sizes(r)
    x, bias = d(rows, width), r.random() < 0.5
    made = [
        g.make(_LINEAR, x, d(one, width), *([d(one)] if bias else []))
        for one in (r.randint(1, 4) for _ in range(2))
    ]
    return g.make(_CAT, made, 1)


@rule("x A', x B' = split(x cat(A, B)')", _linears_example)
def _linears(g: EGraph) -> Pairs:
    found: dict[tuple[ClassId, int], list[tuple[ClassId, list[Any]]]] = {}
    for one, given, named in g.all_by(_LINEAR):
        if not named and not any(True for _ in g.by(one, GETITEM)):
            found.setdefault((given[0], len(given)), []).append((one, given))
    for (x, num), group in found.items():
        group = list(dict(group).items())
        if len(group) > 1:
            joined = [g.make(_CAT, [given[at] for _, given in group], 0) for at in range(1, num)]
            whole = g.make(_LINEAR, x, *joined)
            sizes = [_shape(g, given[1])[0] for _, given in group]
            parts = g.make(aten.split_with_sizes.default, whole, sizes, -1)
            yield [(one, g.make(GETITEM, parts, at)) for at, (one, _) in enumerate(group)]


def _linear_sum_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    rows, width, out = _sizes(r, 3)
    x = d(rows, width)
    return g.make(_ADD, g.make(_LINEAR, x, d(out, width)), g.make(_LINEAR, x, d(out, width)))


@rule("x A' + x B' = x (A + B)'", _linear_sum_example)
def _linear_sum(g: EGraph) -> Pairs:
    for one, given, named in g.all_by(_ADD):
        if _plain(given, named):
            for _, left, _ in g.by(given[0], _LINEAR):
                for _, right, _ in g.by(given[1], _LINEAR):
                    if left[0] == right[0] and len(left) == len(right) == 2 and left[1] != right[1]:
                        yield [(one, g.make(_LINEAR, left[0], g.make(_ADD, left[1], right[1])))]


def _conv_sum_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    (width, out), stride, kernel = _sizes(r), r.randint(1, 2), r.choice((1, 3, 5))
    x, bias = d(2, width, 7, 7), r.random() < 0.5
    made = []
    for size in (kernel, r.choice((1, 3))):
        given = [x, d(out, width, size, size), d(out) if bias else None, [stride] * 2, [size // 2] * 2]
        made.append(g.make(_CONV, *given))
    return g.make(_ADD, *made)


@rule("conv(x, A) + conv(x, B) = conv(x, A + pad(B))", _conv_sum_example)
def _conv_sum(g: EGraph) -> Pairs:
    for one, given, named in g.all_by(_ADD):
        if not _plain(given, named):
            continue
        for first, second in (given, given[::-1]):
            for left, right in product(_convs(g, first), _convs(g, second)):
                (xa, wa, ba, sa, pa), (xb, wb, bb, sb, pb) = left, right
                a, b = _shape(g, wa)[2:], _shape(g, wb)[2:]
                grown = [(m - n) // 2 for m, n in zip(a, b, strict=True)]
                fits = all(m - n == 2 * k >= 0 for m, n, k in zip(a, b, grown, strict=True))
                centred = [p - q for p, q in zip(pa, pb, strict=True)] == grown
                if (
                    xa != xb
                    or sa != sb
                    or (ba is None) != (bb is None)
                    or not fits
                    or not centred
                    or wa == wb
                ):
                    continue
                wide = (
                    g.make(aten.pad.default, wb, [grown[1], grown[1], grown[0], grown[0]])
                    if any(grown)
                    else wb
                )
                bias = None if ba is None else g.make(_ADD, ba, bb)
                yield [(one, g.make(_CONV, xa, g.make(_ADD, wa, wide), bias, sa, pa))]


def _convs(g: EGraph, one: ClassId) -> Iterator[list[Any]]:
    """Yield the arguments of plain convolutions: input, weight, bias, stride, padding."""
    for _, given, named in g.by(one, _CONV):
        whole = [*given, *[None, [1, 1], [0, 0], [1, 1], 1][len(given) - 2 :]]
        if not named and whole[5:] == [[1, 1], 1] and not any(isinstance(part, str) for part in whole):
            yield whole[:5]


def _product_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    a, b, c, e = _sizes(r, 4)
    return g.make(aten.matmul.default, g.make(aten.matmul.default, d(a, b), d(b, c)), d(c, e))


@rule("(x A) B = x (A B)", _product_example)
def _product(g: EGraph) -> Pairs:
    for one, (inner, b), _ in g.all_by(aten.matmul.default):
        for _, (x, a), _ in g.by(inner, aten.matmul.default):
            if all(len(_shape(g, part)) == 2 for part in (x, a, b)):
                yield [(one, g.make(aten.matmul.default, x, g.make(aten.matmul.default, a, b)))]


def _turned_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    a, b = r.sample(range(3), 2)
    x = g.make(aten.transpose.int, d(*_sizes(r, 3)), a, b)
    return g.make(aten.transpose.int, x, *r.choice(((a, b), (b, a), (a - 3, b))))


@rule("transpose(transpose(x)) = x", _turned_example)
def _turned(g: EGraph) -> Pairs:
    for one, (inner, a, b), _ in g.all_by(aten.transpose.int):
        dims = len(_shape(g, inner))
        for _, (x, c, e), _ in g.by(inner, aten.transpose.int):
            if {a % dims, b % dims} == {c % dims, e % dims}:
                yield [(one, g.find(x))]


def _views_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    a, b, c = _sizes(r, 3)
    return g.make(
        r.choice(_VIEWS), g.make(r.choice(_VIEWS), d(a, b, c), [a * b, c]), r.choice(([a, b, c], [c, a * b]))
    )


@rule("reshape(reshape(x)) = reshape(x)", _views_example)
def _views(g: EGraph) -> Pairs:
    for one, (inner, _), _ in g.all_by(*_VIEWS):
        for _, (x, _), _ in g.by(inner, *_VIEWS):
            same = _shape(g, x) == _shape(g, one)
            yield [(one, g.find(x) if same else g.make(aten.reshape.default, x, list(_shape(g, one))))]


def _fold_example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    rows, width, out = _sizes(r, 3)
    return g.make(_LINEAR, g.make(_MUL, d(rows, width), d(width)), d(out, width))


@rule("(x s) A' = x (A s)'", _fold_example)
def _fold(g: EGraph) -> Pairs:
    for one, given, named in g.all_by(_LINEAR):
        for x, scale in _products(g, given[0]):
            if not named and len(_shape(g, scale)) == 1 and _shape(g, x)[-1:] == _shape(g, scale):
                yield [(one, g.make(_LINEAR, x, g.make(_MUL, given[1], scale), *given[2:]))]


_TO: Final = (aten.to.dtype, aten.to.dtype_layout)


@rule("to(x, its type) = x", lambda g, d, r: g.make(aten.to.dtype, d(*_sizes(r)), torch.float64))
def _typed(g: EGraph) -> Pairs:
    for one, given, _ in g.all_by(*_TO):
        if g.values[g.find(given[0])][::2] == g.values[one][::2]:
            yield [(one, g.find(given[0]))]
