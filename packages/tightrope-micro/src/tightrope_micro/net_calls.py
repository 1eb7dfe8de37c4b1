"""Calls of the kernels of inference: integers, copies, layers that add to a stream."""

from collections.abc import Callable
from math import prod
from typing import Final

from tightrope.core import View
from tightrope.core.values import ITEM_BYTES
from tightrope_micro.given import Given
from tightrope_micro.names import BLENDS, CURVES, DIMENSIONS, REDUCTIONS
from tightrope_micro.translator import whole_numbers

_Found = list[str | int | float]


def _whole(a: Given, first: int, last: int | None = None) -> list[int]:
    return [value for value in a.run.arguments[first:last] if isinstance(value, int)]


def _wide(a: Given) -> int:
    return int(a.made_view().dtype == "int16")


def _narrow(a: Given) -> int:
    view = a.view(0)
    return int(view is not None and view.dtype == "int8")


def _sizes(a: Given, x: int) -> list[int]:
    """Sizes of a convolution of the argument ``x``, whose weight stands behind it."""
    weight, made = a.shape(x + 1), a.result()
    return [*a.shape(x), weight[0], *made[2:], *weight[2:]]


def _conv(a: Given) -> _Found:
    return [*a.at(0, 1, 2, 3), *a.made(), _wide(a), *_sizes(a, 0), *a.pairs(4, 5), *_whole(a, 6)]


def _conv_add(a: Given) -> _Found:
    return [*_stream(a), *_sizes(a, 1), *a.pairs(5, 6), *_whole(a, 7)]


def _stream(a: Given) -> _Found:
    """What a layer that adds to a stream reads and makes; whether the stream is narrow, the result wide."""
    return [*a.at(0, 1, 2, 3, 4), *a.made(), _narrow(a), _wide(a)]


def _add(a: Given) -> _Found:
    *numbers, low, high = _whole(a, 2)
    numbers = numbers or [1, 1, 1, 0, 0]
    return [*a.at(0, 1), *a.made(), _narrow(a), _wide(a), prod(a.result()), *numbers, low, high]


def _float_conv_add(a: Given) -> _Found:
    return [*a.at(0, 1, 2, 3), *a.made(), *_sizes(a, 1), *a.pairs(4, 5), *_whole(a, 6)]


def _rows(a: Given, x: int) -> list[int]:
    """Rows, inputs and outputs of a dense layer of the argument ``x``."""
    weight = a.shape(x + 1)
    return [prod(a.shape(x)) // weight[1], weight[1], weight[0]]


def _attention(a: Given) -> _Found:
    n, rows, heads, size = a.shape(0)
    numbers = [n, heads, rows, a.shape(1)[1], size, *_whole(a, 3, 9)]
    return [*a.at(0, 1, 2), *a.made(0), *a.made(1), *numbers, _name(a, 9)]


def _name(a: Given, at: int) -> str:
    name = a.run.arguments[at]
    assert isinstance(name, str)
    return name


def _softmax(a: Given) -> _Found:
    (size,) = _whole(a, 1)
    rows = prod(a.shape(0)) // size
    return [*a.at(0), *a.made(0), *a.made(1), _wide(a), rows, size, _name(a, 2)]


def _row_sum(a: Given) -> _Found:
    size = prod(a.shape(1))
    return [*a.at(0, 1), *a.made(), prod(a.result()) // size, size, *_whole(a, 2)]


def _elementwise(a: Given) -> _Found:
    return [*a.at(0), *a.made(), prod(a.result()), *_whole(a, 1)]


def _planes(a: Given) -> list[int]:
    shape = a.shape(0)
    return [shape[0] * shape[1], *shape[2:], *a.result()[2:]]


def _gather(a: Given) -> _Found:
    sizes, strides = (list(whole_numbers(a.value(k))) for k in (1, 2))
    missing = DIMENSIONS - len(sizes)
    bytes_each = ITEM_BYTES[a.made_view().dtype]
    return [
        *a.at(0), *a.made(), bytes_each, *[1] * missing, *sizes, *[0] * missing, *strides, *_whole(a, 3),
    ]  # fmt: skip


def _cat(a: Given) -> _Found:
    (outer,) = _whole(a, 2)
    sizes = [
        prod(a.shape(k)) * ITEM_BYTES[v.dtype] // outer for k in (0, 1) if isinstance(v := a.value(k), View)
    ]
    return [*a.at(0, 1), *a.made(), outer, *sizes]


def _place(a: Given, at: int, names: tuple[str, ...]) -> int:
    """Number of a function in the list that the kernel has."""
    return names.index(_name(a, at))


def _numbers(a: Given, first: int, last: int | None = None) -> list[str | int | float]:
    """Whole and real numbers among the arguments."""
    return [v for v in a.run.arguments[first:last] if isinstance(v, int | float)]


def _curve(a: Given) -> _Found:
    return [*a.at(0), *a.made(), prod(a.result()), _place(a, 1, CURVES), *_numbers(a, 2)]


def _four(shape: tuple[int, ...]) -> list[int]:
    return [*[1] * (DIMENSIONS - len(shape)), *shape]


def _blend(a: Given) -> _Found:
    strides = []
    for k in (0, 1):
        sizes = _four(a.shape(k))
        strides += [0 if size == 1 else prod(sizes[at + 1 :]) for at, size in enumerate(sizes)]
    return [*a.at(0, 1), *a.made(), _place(a, 2, BLENDS), *_four(a.result()), *strides]


def _outer(a: Given, names: tuple[str, ...] = ()) -> _Found:
    """What goes over `size` numbers that lie `inner` apart."""
    size, inner, *rest = _whole(a, 1 + bool(names))
    outer = prod(a.shape(0)) // (size * inner)
    kind = [_place(a, 1, names)] if names else rest
    return [*a.at(0), *a.made(), outer, size, inner, *kind]


def _pad(a: Given) -> _Found:
    before = _four(whole_numbers(a.value(1)))
    before[: DIMENSIONS - len(a.shape(0))] = [0] * (DIMENSIONS - len(a.shape(0)))
    return [*a.at(0), *a.made(), *_numbers(a, 2), *_four(a.shape(0)), *_four(a.result()), *before]


def _dilated(a: Given) -> _Found:
    return [*a.at(0, 1, 2), *a.made(), *_sizes(a, 0), *a.pairs(3, 4, 5), *_whole(a, 6)]


def _upsample(a: Given) -> _Found:
    return [*a.at(0), *a.made(), *_planes(a), int(_name(a, 1) == "bilinear"), *_numbers(a, 2)]


def _group_norm(a: Given) -> _Found:
    n, channels, *rest = a.shape(0)
    return [*a.at(0, 1, 2), *a.made(), n, channels, prod(rest), *_numbers(a, 3)]


def _put_rows(a: Given) -> _Found:
    _, planes, rows, width = a.shape(0)
    named = dict(a.run.keywords)
    first, every = named["first"], named["rows"]
    assert isinstance(first, int)
    assert isinstance(every, int)
    return [*a.at(0), *a.made(), planes, rows, width * ITEM_BYTES[a.made_view().dtype], first, every]


def _reference_conv(a: Given) -> _Found:
    """A convolution with channels last, and the number of groups where it is not of each channel alone."""
    made, weight = a.result(), a.shape(1)
    sizes = [*a.shape(0), *made[1:], *weight[1:3], *(a.shape(0)[3] // n for n in weight[3:])]
    return [*a.at(0, 1, 2, 3, 4), *a.made(), *sizes, *a.pairs(5, 6, 7), *_whole(a, 8)]


def _reference_pair(a: Given) -> _Found:
    return [*a.at(0, 1), *a.made(), *a.pairs(2, 3, 4), *_whole(a, 5)]


def _reference_scale(a: Given) -> _Found:
    plain = [int(view.dtype == "uint8") for view in (a.view(0), a.made_view()) if view is not None]
    return [*a.at(0), *a.made(), prod(a.result()), *plain, *_whole(a, 1)]


def _reference_softmax(a: Given) -> _Found:
    size, last = _whole(a, 2)
    return [*a.at(0, 1), *a.made(), prod(a.result()) // size, size, last]


NET_CALLS: Final[dict[str, Callable[[Given], _Found]]] = {
    "adaptive_pool2d": lambda a: [*a.at(0), *a.made(), *_planes(a), int(_name(a, 1) == "amax")],
    "argmax": _outer,
    "avg_pool2d_edge": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2, 3), *_whole(a, 4)],
    "blend": _blend,
    "bmm": lambda a: [*a.at(0, 1), *a.made(), *a.shape(0), a.shape(1)[2]],
    "cat": _cat,
    "conv2d_add": _float_conv_add,
    "conv2d_dilated": _dilated,
    "curve": _curve,
    "gather": _gather,
    "group_norm": _group_norm,
    "linear_add": lambda a: [*a.at(0, 1, 2, 3), *a.made(), *_rows(a, 1)],
    "max_pool2d_only": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2, 3)],
    "pad": _pad,
    "put_rows": _put_rows,
    "q_add": _add,
    "q_add_rows": _row_sum,
    "q_attention": _attention,
    "q_avg_pool2d": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2), *_whole(a, 3)],
    "q_conv2d": _conv,
    "q_conv2d_add": _conv_add,
    "q_gelu": lambda a: [*a.at(0), *a.made(), prod(a.result()) // _whole(a, 2)[0], _name(a, 1)],
    "q_layer_norm": lambda a: [*a.at(0), *a.made(), prod(a.shape(0)) // a.shape(0)[-1], _name(a, 1)],
    "q_linear": lambda a: [*a.at(0, 1, 2, 3), *a.made(), _wide(a), *_rows(a, 0), *_whole(a, 4)],
    "q_linear_add": lambda a: [*_stream(a), *_rows(a, 1), *_whole(a, 5)],
    "q_max_pool2d": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2, 3)],
    "q_mean_rows": lambda a: [*a.at(0), *a.made(), *a.shape(0), *_whole(a, 1)],
    "q_narrow": _elementwise,
    "q_relu_int16": _elementwise,
    "q_relu_int8": _elementwise,
    "q_softmax": _softmax,
    "q_table": lambda a: [*a.at(0, 1), *a.made(), prod(a.result())],
    "q_widen": _elementwise,
    "reduce": lambda a: _outer(a, REDUCTIONS),
    "softmax": _outer,
    "t_add": _reference_pair,
    "t_conv2d": _reference_conv,
    "t_depthwise_conv2d": _reference_conv,
    "t_dequantize": lambda a: [*a.at(0), *a.made(), prod(a.result()), *_numbers(a, 1)],
    "t_linear": lambda a: [*a.at(0, 1, 2, 3, 4, 5), *a.made(), *_rows(a, 0), *_whole(a, 6)],
    "t_mean": lambda a: [*a.at(0), *a.made(), *_whole(a, 1)],
    "t_mul": _reference_pair,
    "t_pad": _pad,
    "t_pool2d": lambda a: [
        *a.at(0), *a.made(), *a.shape(0), *a.result()[1:3], *a.pairs(1, 2, 3), *_whole(a, 4),
    ],
    "t_quantize": lambda a: [*a.at(0), *a.made(), prod(a.result()), *_numbers(a, 1)],
    "t_rescale": _reference_scale,
    "t_softmax": _reference_softmax,
    "upsample2d": _upsample,
}  # fmt: skip
"""Kernel -> what it is called with."""
