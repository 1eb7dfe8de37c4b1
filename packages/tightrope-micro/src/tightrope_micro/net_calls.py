"""Calls of the kernels of inference: integers, copies, layers that add to a stream."""

from collections.abc import Callable
from math import prod
from typing import Final

from tightrope.core import View
from tightrope.core.values import ITEM_BYTES
from tightrope_micro.given import Given
from tightrope_micro.translator import whole_numbers

_Found = list[str | int | float]
_DIMENSIONS: Final = 4


def _whole(a: Given, first: int, last: int | None = None) -> list[int]:
    return [value for value in a.run.arguments[first:last] if isinstance(value, int)]


def _wide(a: Given) -> int:
    return int(a.made_view().dtype == "int16")


def _sizes(a: Given, x: int) -> list[int]:
    """Sizes of a convolution of the argument ``x``, whose weight stands behind it."""
    weight, made = a.shape(x + 1), a.result()
    return [*a.shape(x), weight[0], *made[2:], *weight[2:]]


def _conv(a: Given) -> _Found:
    return [*a.at(0, 1, 2, 3), *a.made(), _wide(a), *_sizes(a, 0), *a.pairs(4, 5), *_whole(a, 6)]


def _conv_add(a: Given) -> _Found:
    return [*a.at(0, 1, 2, 3, 4), *a.made(), *_sizes(a, 1), *a.pairs(5, 6), *_whole(a, 7)]


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
    missing = _DIMENSIONS - len(sizes)
    bytes_each = ITEM_BYTES[a.made_view().dtype]
    return [
        *a.at(0), *a.made(), bytes_each, *[1] * missing, *sizes, *[0] * missing, *strides, *_whole(a, 3),
    ]  # fmt: skip


def _cat(a: Given) -> _Found:
    sizes = [prod(a.shape(k)) * ITEM_BYTES[v.dtype] for k in (0, 1) if isinstance(v := a.value(k), View)]
    return [*a.at(0, 1), *a.made(), *sizes]


def _put_rows(a: Given) -> _Found:
    _, planes, rows, width = a.shape(0)
    named = dict(a.run.keywords)
    first, every = named["first"], named["rows"]
    assert isinstance(first, int)
    assert isinstance(every, int)
    return [*a.at(0), *a.made(), planes, rows, width * ITEM_BYTES[a.made_view().dtype], first, every]


NET_CALLS: Final[dict[str, Callable[[Given], _Found]]] = {
    "cat": _cat,
    "conv2d_add": _float_conv_add,
    "gather": _gather,
    "linear_add": lambda a: [*a.at(0, 1, 2, 3), *a.made(), *_rows(a, 1)],
    "max_pool2d_only": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2, 3)],
    "put_rows": _put_rows,
    "q_add": lambda a: [*a.at(0, 1), *a.made(), prod(a.result()), *_whole(a, 2)],
    "q_add_rows": _row_sum,
    "q_attention": _attention,
    "q_avg_pool2d": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2), *_whole(a, 3)],
    "q_conv2d": _conv,
    "q_conv2d_add": _conv_add,
    "q_gelu": lambda a: [*a.at(0), *a.made(), prod(a.result()) // _whole(a, 2)[0], _name(a, 1)],
    "q_layer_norm": lambda a: [*a.at(0), *a.made(), prod(a.shape(0)) // a.shape(0)[-1], _name(a, 1)],
    "q_linear": lambda a: [*a.at(0, 1, 2, 3), *a.made(), _wide(a), *_rows(a, 0), *_whole(a, 4)],
    "q_linear_add": lambda a: [*a.at(0, 1, 2, 3, 4), *a.made(), *_rows(a, 1), *_whole(a, 5)],
    "q_max_pool2d": lambda a: [*a.at(0), *a.made(), *_planes(a), *a.pairs(1, 2, 3)],
    "q_mean_rows": lambda a: [*a.at(0), *a.made(), *a.shape(0), *_whole(a, 1)],
    "q_narrow": _elementwise,
    "q_relu_int16": _elementwise,
    "q_relu_int8": _elementwise,
    "q_table": lambda a: [*a.at(0, 1), *a.made(), prod(a.result())],
    "q_widen": _elementwise,
}
"""Kernel -> what it is called with."""
