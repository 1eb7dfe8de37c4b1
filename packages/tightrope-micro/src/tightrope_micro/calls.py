"""How a run becomes a call of a kernel in C: the pointers and the numbers, in the kernel's order."""

from collections.abc import Callable
from typing import Final

from tightrope.core import Argument, Run
from tightrope_micro.given import Given, Pointer, count_of, kernel_name, number
from tightrope_micro.names import CURVES
from tightrope_micro.net_calls import NET_CALLS


def call_of(run: Run, pointer: Pointer) -> str:
    """Write the call of a run's kernel.

    Example:
        >>> from tightrope.core import Result, View
        >>> views = [View(k, "float32", (2, 3), (3, 1)) for k in range(2)]
        >>> run = Run(0, "micro.relu", (views[0],), results=(Result(-1, views[1]),))
        >>> call_of(run, lambda view: f"b{view.base}")
        'k_relu(b0, b1, 6);'
    """
    name = kernel_name(run)
    base = f"{name.removesuffix('adamw')}sgd" if name.endswith("_adamw") else name
    given = CALLS[base](Given(run, pointer))
    return f"k_{name}({', '.join(v if isinstance(v, str) else number(v) for v in given)});"


_Call = Callable[[Given], list[str | int | float]]


def _conv(x: tuple[int, ...], y: tuple[int, ...], w: tuple[int, ...]) -> list[int]:
    return [*x, w[0], *y[2:], *w[2:]]


def _tile(a: Given, rows: int, *, adds: bool = False) -> list[str | int | float]:
    """First row of the weight's tile and the number of all rows; whether it adds to what others made."""
    named = dict(a.run.keywords)
    found: list[str | int | float] = [_int(named.get("first", 0)), _int(named.get("rows", rows))]
    return [*found, int("out" in named)] if adds else found


def _channels_of(a: Given, weight: int) -> list[str | int | float]:
    """First channel of a weight's rows, and how many they have."""
    return [_int(dict(a.run.keywords).get("channel", 0)), a.shape(weight)[1]]


def _conv2d(a: Given) -> list[str | int | float]:
    sizes = _conv(a.shape(0), a.result(), a.shape(1))
    tile, added = _tile(a, a.shape(1)[0]), _int(dict(a.run.keywords).get("added", 0))
    numbers = [*sizes, *a.pairs(3, 4), _int(a.value(5)), *tile, *_channels_of(a, 1), added]
    return [*a.at(0, 1, 2), *a.made(), *numbers]


def _conv2d_input(a: Given) -> list[str | int | float]:
    sizes = _conv(a.result(), a.shape(0), a.shape(1))
    *tile, added = _tile(a, a.shape(1)[0], adds=True)
    numbers = [*sizes, *a.pairs(2, 3), _int(a.value(4)), *tile, *_channels_of(a, 1), added]
    return [*a.at(0, 1), *a.made(), *numbers]


def _conv2d_weight(a: Given) -> list[str | int | float]:
    sizes = _conv(a.shape(1), a.shape(0), a.shape(2))
    tile = _tile(a, a.shape(2)[0])
    numbers = [*sizes, *a.pairs(4, 5), _int(a.value(6)), *tile, *_channels_of(a, 2)]
    return [*a.at(0, 1, 2, 3), *numbers, a.rule()]


def _channel_sum(a: Given) -> list[str | int | float]:
    rows, channels, *rest = a.shape(0)
    return [*a.at(0, 1, 2), rows, channels, count_of(tuple(rest)), a.rule()]


def _linear(a: Given) -> list[str | int | float]:
    return [*a.at(0, 1, 2), *a.made(), *a.shape(0), a.shape(1)[0], *_tile(a, a.shape(1)[0])]


def _linear_input(a: Given) -> list[str | int | float]:
    rows, columns = a.shape(1)
    return [*a.at(0, 1), *a.made(), a.shape(0)[0], columns, rows, *_tile(a, rows, adds=True)]


def _linear_weight(a: Given) -> list[str | int | float]:
    rows = a.shape(2)[0]
    return [*a.at(0, 1, 2, 3), *a.shape(1), rows, *_tile(a, rows), a.rule()]


def _planes(shape: tuple[int, ...]) -> list[int]:
    return [shape[0] * shape[1], *shape[2:]]


def _max_pool(a: Given) -> list[str | int | float]:
    return [*a.at(0), *a.made(0), *a.made(1), *_planes(a.shape(0)), *a.result()[2:], *a.pairs(1, 2, 3)]


def _max_pool_backward(a: Given) -> list[str | int | float]:
    kernel = a.pairs(2)
    return [*a.at(0, 1), *a.made(), *_planes(a.result()), *a.shape(0)[2:], kernel[1], *a.pairs(3, 4)]


def _avg_pool(a: Given) -> list[str | int | float]:
    return [*a.at(0), *a.made(), *_planes(a.shape(0)), *a.result()[2:], *a.pairs(1, 2)]


def _avg_pool_backward(a: Given) -> list[str | int | float]:
    return [*a.at(0), *a.made(), *_planes(a.result()), *a.shape(0)[2:], *a.pairs(1, 2)]


def _channels(shape: tuple[int, ...]) -> list[int]:
    return [shape[0], shape[1], count_of(shape[2:])]


def _int(value: Argument) -> int:
    assert isinstance(value, int)
    return value


def _real(value: Argument) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _rows(a: Given, at: int) -> list[int]:
    """Number of rows of an argument, and their size."""
    shape = a.shape(at)
    return [count_of(shape[:-1]), shape[-1]]


def _add_rows(a: Given) -> list[str | int | float]:
    size = count_of(a.shape(1))
    return [*a.at(0, 1), *a.made(), count_of(a.result()) // size, size]


def _attention(a: Given) -> list[str | int | float]:
    query, key = a.shape(0), a.shape(1)
    sizes = [query[0], query[2], query[1], key[1], query[3]]
    return [*a.at(0, 1, 2), *a.made(0), *a.made(1), *sizes, _real(a.value(3)), _int(a.value(4))]


def _attention_backward(a: Given) -> list[str | int | float]:
    query, key = a.shape(1), a.shape(2)
    sizes = [query[0], query[2], query[1], key[1], query[3]]
    made = [one for k in range(3) for one in a.made(k)]
    return [*a.at(0, 1, 2, 3, 4, 5), *made, *sizes, _real(a.value(6)), _int(a.value(7))]


def _recurrent(a: Given) -> list[str | int | float]:
    made = [one for k in range(4) for one in a.made(k)]
    numbers = [_int(a.value(k)) for k in (7, 8, 9)]
    return [*a.at(*range(7)), *made, *a.shape(0), a.result()[2], *numbers]


def _recurrent_gates(a: Given) -> list[str | int | float]:
    made = [one for k in range(len(a.run.results)) for one in a.made(k)]
    apart = made[1:] if len(made) == 3 else ["0", *made[1:]]
    sizes = [*a.shape(0), a.shape(2)[1]]
    return [*a.at(*range(12)), made[0], *apart, *sizes, *(_int(a.value(k)) for k in (12, 13))]


def _recurrent_weight(a: Given) -> list[str | int | float]:
    return [*a.at(0, 1, 2, 4, 5), *a.shape(0), a.shape(4)[1], _int(a.value(3)), a.rule()]


CALLS: Final[dict[str, _Call]] = {
    "add": lambda a: [*a.at(0, 1), *a.made(), count_of(a.result())],
    "add_rows": _add_rows,
    "adamw_rates": lambda a: [*a.at(0), *a.made(), *(repr(a.value(k)) for k in (1, 2, 3))],
    "attention": _attention,
    "attention_backward": _attention_backward,
    "avg_pool2d": _avg_pool,
    "avg_pool2d_backward": _avg_pool_backward,
    "batch_norm": lambda a: [*a.at(0, 1, 2, 3), *a.made(), *_channels(a.shape(0)), _real(a.value(4))],
    "batch_norm_input": lambda a: [
        *a.at(0, 1, 2, 3, 4), *a.made(), *_channels(a.shape(0)), _real(a.value(5))
    ],
    "batch_norm_running": lambda a: [*a.at(0, 1, 2), a.shape(1)[0], _real(a.value(3)), _int(a.value(4))],
    "batch_norm_stats": lambda a: [*a.at(0), *a.made(), *_channels(a.shape(0))],
    "batch_norm_sums": lambda a: [*a.at(0, 1, 2), *a.made(), *_channels(a.shape(0)), _real(a.value(3))],
    "channel_sum_sgd": _channel_sum,
    "conv2d": _conv2d,
    "conv2d_input": _conv2d_input,
    "conv2d_weight_sgd": _conv2d_weight,
    "curve_backward": lambda a: [
        *a.at(0, 1), *a.made(), count_of(a.result()), CURVES.index(str(a.value(2))),
        *(_real(a.value(k)) for k in (3, 4)),
    ],
    "dropout": lambda a: [
        *a.at(0, 1), *a.made(0), *a.made(1), count_of(a.result()), _int(a.value(2)),
        round(_real(a.value(3)) * (1 << 24)), 1 / (1 - _real(a.value(3))) if _real(a.value(3)) < 1 else 0.0,
    ],
    "dropout_backward": lambda a: [*a.at(0, 1), *a.made(), count_of(a.result()), _real(a.value(2))],
    "dropout_key": lambda a: [*a.at(0), *a.made()],
    "embedding": lambda a: [*a.at(0, 1), *a.made(), count_of(a.shape(1)), *a.shape(0)],
    "embedding_sgd": lambda a: [*a.at(0, 1, 2, 3), count_of(a.shape(1)), *a.shape(2), a.rule()],
    "gelu": lambda a: [*a.at(0), *a.made(), count_of(a.result())],
    "gelu_backward": lambda a: [*a.at(0, 1), *a.made(), count_of(a.result())],
    "layer_norm": lambda a: [*a.at(0, 1, 2, 3), *a.made(), *_rows(a, 0)],
    "layer_norm_input": lambda a: [*a.at(0, 1, 2, 3), *a.made(), *_rows(a, 0)],
    "layer_norm_weight_sgd": lambda a: [*a.at(0, 1, 2, 3, 4), *_rows(a, 0), a.rule()],
    "linear": _linear,
    "linear_input": _linear_input,
    "linear_weight_sgd": _linear_weight,
    "log_softmax": lambda a: [*a.at(0), *a.made(), *a.shape(0)],
    "log_softmax_backward": lambda a: [*a.at(0, 1), *a.made(), *a.shape(0)],
    "max_pool2d": _max_pool,
    "max_pool2d_backward": _max_pool_backward,
    "mean_rows": lambda a: [*a.at(0), *a.made(), *a.shape(0)],
    "mean_rows_backward": lambda a: [*a.at(0), *a.made(), *a.result()],
    "mse_loss": lambda a: [*a.at(0, 1), *a.made(), count_of(a.shape(0))],
    "mse_loss_backward": lambda a: [*a.at(0, 1), *a.made(), count_of(a.shape(0))],
    "nll_loss": lambda a: [*a.at(0, 1), *a.made(), *a.shape(0)],
    "nll_loss_backward": lambda a: [*a.at(0), *a.made(), *a.result()],
    "recurrent": _recurrent,
    "recurrent_gates": _recurrent_gates,
    "recurrent_weight_sgd": _recurrent_weight,
    "relu": lambda a: [*a.at(0), *a.made(), count_of(a.result())],
    "relu_backward": lambda a: [*a.at(0, 1), *a.made(), count_of(a.result())],
    "row_stats": lambda a: [*a.at(0), *a.made(), *_rows(a, 0), _real(a.value(1))],
    "signs": lambda a: [*a.at(0), *a.made(), count_of(a.shape(0))],
    "signs_backward": lambda a: [*a.at(0, 1), *a.made(), count_of(a.result())],
    "vector_sgd": lambda a: [*a.at(0, 1, 2), count_of(a.shape(1)), a.rule()],
    **NET_CALLS,
}  # fmt: skip
"""Kernel -> what it is called with."""
