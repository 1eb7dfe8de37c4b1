"""Prove rules by numbers: an example of every rule, random sizes, float64, results and gradients."""

import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from tightrope.core import TightropeError
from tightrope_forms.rewrite.egraph import ClassId, EGraph, ENode, Rewrites, aten, spec_of, thawed
from tightrope_forms.rewrite.rules import LEFT, Match, build

CLOSE: Final = 1e-10
Choice = dict[ClassId, ENode]
Draw: TypeAlias = Callable[..., ClassId]
"""Makes a leaf of a shape."""
Example: TypeAlias = Callable[[EGraph, Draw, random.Random], ClassId]


def _sizes(r: random.Random, dims: int = 2) -> tuple[int, ...]:
    return tuple(r.randint(1, 5) for _ in range(dims))


def _one(r: random.Random) -> Match:
    return {"x": _sizes(r)}


def _heads(r: random.Random) -> Match:
    b, h, t, s, width = _sizes(r, 5)
    turned = dict(zip("ab", r.choice(((-1, -2), (-2, -1), (2, 3))), strict=True))
    still = {"w": lambda d: d(t, s, grad=False), "c": r.choice((0.5, 3.0)), "d": -1}
    return {"x": (b, h, t, width), "y": (b, h, s, width), "v": (b, h, s, width), **turned, **still}


def _turned(r: random.Random) -> Match:
    a, b = r.sample(range(3), 2)
    return {
        "x": _sizes(r, 3),
        "a": a,
        "b": b,
        **dict(zip("cd", r.choice(((a, b), (b, a), (a - 3, b))), strict=True)),
    }


def _pool(r: random.Random) -> Match:
    kernel = [r.randint(1, 4), r.randint(1, 4)]
    rest = [kernel, r.choice(([], [2, 1], [3, 2])), [r.randint(0, one // 2) for one in kernel]]
    return {"x": (2, r.randint(1, 3), r.randint(4, 9), 8), "rest": rest[: r.randint(1, 3)]}


MATCHES: Final[dict[str, Callable[[random.Random], Match]]] = {
    "x / a = x (1 / a)": lambda r: {"x": _sizes(r), "a": r.uniform(1, 9)},
    "(x a) b = x (a b)": lambda r: {"x": _sizes(r), "a": r.random(), "b": r.uniform(1, 2)},
    "x * sigmoid(x) = silu(x)": _one,
    "1 / (1 + exp(-x)) = sigmoid(x)": _one,
    "0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = gelu(x)": _one,
    "0.5 x (1 + erf(x / sqrt(2))) = gelu(x)": _one,
    "x rsqrt(mean(x^2) + e) = rms_norm(x)": lambda r: {
        "x": _sizes(r, r.randint(2, 4)), "a": [-1], "b": r.choice((1e-6, 1e-3))
    },
    "rms_norm(x) w = rms_norm(x, w)": lambda r: {
        "x": (2, 3, n := r.randint(1, 5)), "a": [n], "b": 1e-5, "w": (n,)
    },
    "softmax(q k' s) v = attention(q, k, v)": _heads,
    "softmax(q k' s + m) v = attention(q, k, v)": _heads,
    "log(softmax(x)) = log_softmax(x)": lambda r: {"x": _sizes(r), "a": -1},
    "x - logsumexp(x) = log_softmax(x)": lambda r: {"x": _sizes(r), "a": [r.randint(0, 1)]},
    "max_pool(relu(x)) = relu(max_pool(x))": lambda r: {
        "x": (1, r.randint(1, 3), 8, 8), "rest": [[r.choice((2, 3))] * 2, [2, 2]]
    },
    "max_pool(x) = max_pool(x) that keeps a byte": _pool,
    "relu(relu(x)) = relu(x)": _one,
    "add(a, b) = add(b, a)": lambda r: {"x": (s := _sizes(r)), "y": s},
    "x A' + x B' = x (A + B)'": lambda r: {"x": (2, 3), "v": (s := (r.randint(1, 5), 3)), "w": s},
    "(x A) B = x (A B)": lambda r: {
        "x": (r.randint(1, 5), 2), "v": (2, n := r.randint(1, 5)), "w": (n, r.randint(1, 5))
    },
    "(x s) A' = x (A s)'": lambda r: {
        "x": (s := _sizes(r)), "y": s[1:], "w": (n := r.randint(1, 5), *s[1:]),
        "rest": r.choice(([], [lambda d: d(n)])),
    },
    "transpose(transpose(x)) = x": _turned,
    "reshape(reshape(x)) = reshape(x)": lambda r: {
        "x": (2, 3, n := r.randint(1, 5)), "a": [6, n], "b": r.choice(([2, 3, n], [n, 6], [-1]))
    },
    "reshape(x) = x": lambda r: {"x": (s := _sizes(r)), "a": list(s)},
}  # fmt: skip
"""What variables of patterns stand for: shapes of tensors (tuples), options, and functions of a leaf."""


def _relu_cat(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    sizes, dim = _sizes(r, 3), r.randint(0, 2)
    parts = [d(*sizes[:dim], r.randint(1, 4), *sizes[dim + 1 :]) for _ in range(r.randint(2, 4))]
    return g.make(aten.cat.default, [g.make(aten.relu.default, one) for one in parts], dim)


def _linears(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    rows, width = _sizes(r)
    x, bias = d(rows, width), r.random() < 0.5
    made = [
        g.make(aten.linear.default, x, d(one, width), *([d(one)] if bias else []))
        for one in (r.randint(1, 4) for _ in range(2))
    ]
    return g.make(aten.cat.default, made, 1)


def _convolutions(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    (width, out), stride, kernel = _sizes(r), r.randint(1, 2), r.choice((1, 3))
    x, bias, how = d(2, width, 7, 7), r.random() < 0.5, r.random() < 0.5
    rest = [[stride] * 2, [kernel // 2] * 2] if how else []
    made = []
    for size in (out, r.randint(1, 4)):
        given: list[Any] = [x, d(size, width, kernel, kernel)]
        given += [d(size) if bias else None] if bias or rest else []
        made.append(g.make(aten.conv2d.default, *given, *rest))
    return g.make(aten.cat.default, made, 1)


def _conv_sum(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    (width, out), stride, kernel = _sizes(r), r.randint(1, 2), r.choice((1, 3, 5))
    x, bias = d(2, width, 7, 7), r.random() < 0.5
    made = []
    for size in (kernel, r.choice((1, 3))):
        given = [x, d(out, width, size, size), d(out) if bias else None, [stride] * 2, [size // 2] * 2]
        made.append(g.make(aten.conv2d.default, *given))
    return g.make(aten.add.Tensor, *made)


def _norm(g: EGraph, d: Draw, x: ClassId, width: int) -> ClassId:
    """Make a batch norm of fixed statistics."""
    fixed = [d(width, grad=False), g.make(aten.exp.default, d(width, grad=False))]
    return g.make(aten.batch_norm.default, x, d(width), d(width), *fixed, False, 0.1, 1e-5, False)


def _norm_of_conv(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    width, out = _sizes(r)
    given = [d(2, width, 7, 7), d(out, width, 3, 3), *r.choice(([], [d(out), [r.randint(1, 2)] * 2, [1, 1]]))]
    return _norm(g, d, g.make(aten.conv2d.default, *given), out)


def _norm_in_sum(g: EGraph, d: Draw, r: random.Random) -> ClassId:
    size = 2, r.randint(1, 5), 5, 4
    return g.make(aten.add.Tensor, _norm(g, d, d(*size), size[1]), d(*size))


EXAMPLES: Final[dict[str, Example]] = {
    "to(x, its type) = x": lambda g, d, r: g.make(aten.to.dtype, d(*_sizes(r)), torch.float64),
    "cat(relu(a), relu(b)) = relu(cat(a, b))": _relu_cat,
    "x A', x B' = split(x cat(A, B)')": _linears,
    "conv(x, A), conv(x, B) = split(conv(x, cat(A, B)))": _convolutions,
    "conv(x, A) + conv(x, B) = conv(x, A + pad(B))": _conv_sum,
    "batch_norm(conv(x, A)) = conv(x, A s)": _norm_of_conv,
    "batch_norm(x) = conv(x, s)": _norm_in_sum,
}
"""Of rules that are functions."""


def example_of(name: str) -> Example:
    """Make the left side of a rule, of random sizes and options."""
    if name in EXAMPLES:
        return EXAMPLES[name]

    def example(g: EGraph, d: Draw, r: random.Random) -> ClassId:
        def drawn(one: Any) -> Any:
            if isinstance(one, list):
                return [drawn(part) for part in one]
            return d(*one) if isinstance(one, tuple) else one(d) if callable(one) else one

        made: ClassId = build(g, LEFT[name], {key: drawn(one) for key, one in MATCHES[name](r).items()})
        return made

    return example


def evaluate(graph: EGraph, root: ClassId, choice: Choice, leaves: dict[ClassId, Any]) -> Any:
    """Compute a class with the nodes that are chosen; the first node of a class stands for what is not."""
    known = {graph.find(one): value for one, value in leaves.items()}

    def value_of(one: ClassId) -> Any:
        one = graph.find(one)
        if one not in known:
            node = choice.get(one) or next(iter(graph.nodes[one]))
            given, named = thawed(node.args, [value_of(child) for child in node.children])
            known[one] = node.op(*given, **named)
        return known[one]

    return value_of(root)


def prove(name: str, rule: Rewrites, example: Example, *, times: int, seed: int = 0) -> float:
    """Apply a rule to random examples, and compare every form that it finds with the example.

    Args:
        name: of the rule, for messages.
        rule: what is proved.
        example: makes its left side; see `example_of`.
        times: examples.
        seed: of sizes, options and numbers.

    Returns:
        The largest difference, relative to the largest number of a result or gradient.

    Raises:
        TightropeError: a form differs by more than `CLOSE`, or the rule does not apply to an example.
    """
    draw, worst = random.Random(seed), 0.0
    torch_draw = torch.Generator().manual_seed(seed)
    for number in range(times):
        graph, leaves = EGraph(), {}

        def leaf(*shape: int, grad: bool = True) -> ClassId:
            made = torch.randn(shape, dtype=torch.float64, generator=torch_draw).requires_grad_(grad)
            one = graph.leaf(spec_of(made))  # noqa: B023 called in this round
            leaves[one] = made  # noqa: B023
            return one

        root = example(graph, leaf, draw)
        right = _results(graph, root, {}, leaves)
        news = [graph.unite(pairs, name) for pairs in rule(graph)]
        graph.rebuild()
        forms = [dict(moves) for moves in graph.applied]
        if graph.find(root) in {graph.find(one) for one in leaves}:  # equal to something that came in
            forms = [{}]
        if not any(news) or not forms:
            raise TightropeError(f"The rule {name!r} does not apply to its example {number} (seed {seed}).")
        for form in forms:
            found = _results(graph, graph.find(root), form, leaves)
            far = max(_far(one, other) for one, other in zip(found, right, strict=True))
            worst = max(worst, far)
            if not far <= CLOSE:
                raise TightropeError(
                    f"The rule {name!r} is wrong by {far:.1e} on example {number} (seed {seed})."
                )
    return worst


def _results(graph: EGraph, root: ClassId, choice: Choice, leaves: dict[ClassId, Tensor]) -> list[Tensor]:
    made = evaluate(graph, root, choice, leaves)
    wanted = [one for one in leaves.values() if one.requires_grad]
    back = torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)
    grads = torch.autograd.grad(made, wanted, back, allow_unused=True)
    return [
        made,
        *(torch.zeros_like(x) if one is None else one for one, x in zip(grads, wanted, strict=True)),
    ]


def _far(found: Tensor, right: Tensor) -> float:
    if found.shape != right.shape or not bool(found.isfinite().all()):
        return float("inf")
    found, right = found.detach(), right.detach()
    return float((found - right).abs().max() / right.abs().max().clamp(min=1e-3))
