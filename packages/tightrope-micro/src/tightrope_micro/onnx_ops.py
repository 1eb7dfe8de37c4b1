"""Ops of ONNX as functions of PyTorch: what a node reads and its attributes give what it makes."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tightrope.core import UnsupportedOpError
from tightrope_micro.recurrent import KINDS

Rule = Callable[[Sequence[Any], Mapping[str, Any]], Any]
LIMITED: Final = ("Clip", "Pad", "Pow", "Resize")
"""Ops whose constants are limits and shares, no weights."""
ORDER: Final = {"GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1), "RNN": (0,)}
"""Recurrent layer -> where PyTorch's gates are among those of ONNX."""


def _refuse(given: Mapping[str, Any], why: str) -> UnsupportedOpError:
    return UnsupportedOpError(f"{given['op']} {why}.", op=str(given["op"]))


def _ints(value: Any) -> list[int]:
    found = value.tolist() if isinstance(value, Tensor) else value
    return [
        int(one)
        for one in (found if isinstance(found, list | tuple) or hasattr(found, "__iter__") else [found])
    ]


def _real(value: Any) -> float:
    """One number, alone or in a list."""
    found = value.reshape(-1).tolist() if isinstance(value, Tensor) else value
    if isinstance(found, list) and len(found) != 1:
        raise ValueError(f"{len(found)} numbers where one is expected")
    return float(found[0] if isinstance(found, list) else found)


def _sides(given: Mapping[str, Any], x: Tensor, window: Sequence[int]) -> list[int]:
    """Padding of a window op as torch's pad takes it: last dimension first."""
    count = len(window)
    strides, dilations = (given.get(name) or [1] * count for name in ("strides", "dilations"))
    how = given.get("auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER"):
        found: list[int] = []
        for k in reversed(range(count)):
            size, reach = x.shape[2 + k], (window[k] - 1) * dilations[k] + 1
            more = max(0, (-(-size // strides[k]) - 1) * strides[k] + reach - size)
            less = more // 2
            found += [less, more - less] if how == "SAME_UPPER" else [more - less, less]
        return found
    pads = [0] * 2 * count if how == "VALID" else given.get("pads") or [0] * 2 * count
    return [pads[k + side] for k in reversed(range(count)) for side in (0, count)]


def _conv(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, w, *rest = values
    sides = _sides(given, x, w.shape[2:])
    count = len(w.shape) - 2
    if count > 2:
        raise _refuse(given, f"works on {count} dimensions of space; the kernel has 2")
    function = F.conv1d if count == 1 else F.conv2d
    strides, dilations = (given.get(name) or [1] * count for name in ("strides", "dilations"))
    bias = rest[0] if rest else None
    if sides[::2] == sides[1::2]:
        return function(x, w, bias, strides, sides[::-2], dilations, given.get("group", 1))
    return function(F.pad(x, sides), w, bias, strides, 0, dilations, given.get("group", 1))


def _pool(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    (x,) = values
    window, count = given["kernel_shape"], len(given["kernel_shape"])
    strides, sides = given.get("strides") or [1] * count, _sides(given, x, window)
    if set(given.get("dilations") or [1]) != {1}:
        raise _refuse(given, "has dilation")
    ceil, largest = bool(given.get("ceil_mode", 0)), given["op"] == "MaxPool"
    if ceil and given.get("auto_pad", "NOTSET") != "NOTSET":
        raise _refuse(given, "has ceil_mode with auto_pad")
    even = sides[::2] == sides[1::2]
    if not even and largest:  # a window has an element inside, so that the padding never wins
        x, sides = F.pad(x, sides, value=-3.4028234e38), [0] * len(sides)
    elif not even and given.get("count_include_pad", 0):
        x, sides = F.pad(x, sides), [0] * len(sides)
    elif not even:
        raise _refuse(given, "averages over uneven padding")
    before = sides[::-2]
    if largest:
        pool = F.max_pool1d if count == 1 else F.max_pool2d
        return pool(x, window, strides, before, 1, ceil)
    average = F.avg_pool1d if count == 1 else F.avg_pool2d
    return average(x, window, strides, before, ceil, bool(given.get("count_include_pad", 0)))


def _gemm(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    a, b, *c = values
    a = a.t() if given.get("transA", 0) else a
    weight = b if given.get("transB", 0) else b.t()
    if given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
        raise _refuse(given, "has alpha or beta")
    if not c or c[0] is None:
        return F.linear(a, weight)
    alone = c[0].shape[-1:] == weight.shape[:1] and c[0].numel() == weight.shape[0]
    return F.linear(a, weight, c[0].reshape(-1)) if alone else F.linear(a, weight) + c[0]


def _reshape(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, shape = values
    sizes = _ints(shape)
    if not given.get("allowzero", 0):
        sizes = [x.shape[k] if size == 0 else size for k, size in enumerate(sizes)]
    found: Tensor = x.reshape(sizes)
    return found


def _axes(values: Sequence[Any], given: Mapping[str, Any]) -> list[int] | None:
    if len(values) > 1 and values[1] is not None:
        return _ints(values[1])
    return _ints(given["axes"]) if "axes" in given else None


def _squeeze(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    axes, x = _axes(values, given), values[0]
    return x.squeeze() if axes is None else torch.squeeze(x, axes)


def _unsqueeze(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, rank = values[0], values[0].dim() + len(_axes(values, given) or [])
    for axis in sorted(one % rank for one in _axes(values, given) or []):
        x = x.unsqueeze(axis)
    found: Tensor = x
    return found


def _reduced(name: str) -> Rule:
    def rule(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
        if given.get("noop_with_empty_axes", 0) and not _axes(values, given):
            return values[0]  # type: ignore[no-any-return]
        axes = _axes(values, given) or list(range(values[0].dim()))
        found: Tensor = getattr(torch, name)(values[0], dim=axes, keepdim=bool(given.get("keepdims", 1)))
        return found

    return rule


def _slice(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, starts, ends, *rest = values
    axes = _ints(rest[0]) if rest and rest[0] is not None else list(range(len(_ints(starts))))
    steps = _ints(rest[1]) if len(rest) > 1 and rest[1] is not None else [1] * len(axes)
    cut = [slice(None)] * x.dim()
    for axis, first, last, step in zip(axes, _ints(starts), _ints(ends), steps, strict=True):
        whole = step == -1 and first in (-1, x.shape[axis] - 1) and last < -x.shape[axis]
        if step < 1 and not whole:
            raise _refuse(given, "goes backwards over a part")
        if whole:
            x = x.flip(axis)
            continue
        cut[axis] = slice(first, last, step)
    found: Tensor = x[tuple(cut)]
    return found


def _gather(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, index = values
    axis = given.get("axis", 0) % x.dim()
    if isinstance(index, int):
        found: Tensor = x.select(axis, index)
        return found
    index = torch.as_tensor(index)
    if x.is_floating_point():
        raise _refuse(given, "takes several places of a tensor")
    sizes = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
    return torch.index_select(x, axis, index.reshape(-1)).reshape(sizes)


def _pad(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, pads, *rest = values
    if given.get("mode", "constant") != "constant":
        raise _refuse(given, f"pads by {given['mode']}")
    number = 0.0 if not rest or rest[0] is None else _real(rest[0])
    amounts, count = _ints(pads), x.dim()
    if len(rest) > 1 and rest[1] is not None:
        raise _refuse(given, "names axes")
    sides = [amounts[k + side] for k in reversed(range(count)) for side in (0, count)]
    while len(sides) > 2 and sides[-2:] == [0, 0]:
        sides = sides[:-2]
    return F.pad(x, sides, value=number)


def _resize(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, _, scales, sizes = [*values, None, None, None][:4]
    mode, how = given.get("mode", "nearest"), given.get("coordinate_transformation_mode", "half_pixel")
    odd = given.get("antialias", 0) or "axes" in given or x.dim() not in (3, 4)
    if (
        odd
        or given.get("keep_aspect_ratio_policy", "stretch") != "stretch"
        or (sizes is None and scales is None)
    ):
        raise _refuse(given, "resizes in a way that has no kernel")
    exact = list(sizes) if sizes is not None else [s * by for s, by in zip(x.shape, scales, strict=True)]
    out = [int(one) for one in exact]
    whole = all(o % s == 0 for o, s in zip(out, x.shape, strict=True))
    if exact != out or out[:2] != list(x.shape[:2]):
        raise _refuse(given, "resizes to a part of an element, or batch and channels")
    rounds = given.get("nearest_mode", "round_prefer_floor")
    halves = whole and how in ("half_pixel", "pytorch_half_pixel") and rounds.startswith("round")
    if mode == "nearest" and (halves or (how == "asymmetric" and rounds == "floor")):
        return F.interpolate(x, size=out[2:])
    known = how in ("half_pixel", "pytorch_half_pixel", "align_corners") and min(out[2:]) > 1
    if mode == "linear" and known and x.dim() == 4:
        return F.interpolate(x, size=out[2:], mode="bilinear", align_corners=how == "align_corners")
    raise _refuse(given, f"resizes by {mode}, {how}, {rounds}")


def reordered(
    op: str, given: Mapping[str, Any], reads: tuple[str, ...], values: dict[str, Any], fixed: set[str]
) -> tuple[str, ...]:
    """Put the gates of a recurrent layer's weights into the order of PyTorch."""
    if not fixed.issuperset(name for name in reads[1:4] if name):
        raise UnsupportedOpError(f"{op} has weights that are computed.", op=op)
    size, found = given["hidden_size"], list(reads)
    for at, name in enumerate(reads[1:4], 1):
        if name:
            gates = values[name].unflatten(1, (-1, size))  # of the biases there are two rows of gates
            halves = gates.unflatten(1, (-1, len(ORDER[op])))[:, :, list(ORDER[op])]
            found[at] = f"{name} as {op}"
            values[found[at]] = halves.reshape(values[name].shape)
            fixed.add(found[at])
    return tuple(found)


def _recurrent(values: Sequence[Any], given: Mapping[str, Any]) -> tuple[Tensor, ...]:
    x, w, u, b, lengths, first, second = [*values, *[None] * 7][:7]
    kind = str(given["op"])
    plain = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}[kind]
    ways = w.shape[0]
    named = [
        one.decode() if isinstance(one, bytes) else one for one in given.get("activations", plain * ways)
    ]
    odd = lengths is not None or given.get("layout", 0) or "clip" in given or len(values) > 7
    if odd or named != plain * ways or (kind == "GRU" and not given.get("linear_before_reset", 0)):
        raise _refuse(given, "has lengths, other functions, or a reset before the product")
    made = []
    for way in range(ways):
        biases = [None, None] if b is None else b[way].chunk(2)
        starts = [None if one is None else one[way] for one in (first, second)]
        number = KINDS["RNN_TANH" if kind == "RNN" else kind]
        backwards = way == 1 or given.get("direction") == "reverse"
        cell = starts[1] if kind == "LSTM" else None
        made.append(
            torch.ops.tightrope_micro.recurrent(
                x, w[way], u[way], *biases, starts[0], cell, number, backwards, False
            )
        )
    y, h, c = (torch.cat([one[k][None] for one in made]) for k in range(3))
    return y.transpose(0, 1), h, c


def _clip(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    low, high = ([*values[1:], None, None])[:2]
    ends = [None if one is None else _real(one) for one in (low, high)]
    return torch.clamp(
        values[0],
        *[given.get(n) if one is None else one for n, one in zip(("min", "max"), ends, strict=True)],
    )


def _cast(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}
    if given["to"] not in kinds:
        raise _refuse(given, f"makes type {given['to']}")
    found: Tensor = values[0].to(kinds[given["to"]])
    return found


def _constant(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in given:
            value = given[name]
            return value if isinstance(value, Tensor) else torch.tensor(value)
    raise _refuse(given, "holds no tensor and no numbers")


def _argmax(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    if given.get("select_last_index", 0):
        raise _refuse(given, "takes the last of several")
    return torch.argmax(values[0], given.get("axis", 0), bool(given.get("keepdims", 1)))


def _divided(one: Any, other: Any) -> Any:
    return one / other if one.is_floating_point() else torch.div(one, other, rounding_mode="trunc")


def _dropout(values: Sequence[Any], given: Mapping[str, Any]) -> Any:
    if len(values) > 2 and values[2] is not None and bool(values[2]):
        raise _refuse(given, "is of training")
    return values[0]


def _prelu(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, slope = values
    wanted = (x.shape[1], *[1] * (x.dim() - 2)) if x.dim() > 1 else ()
    if (slope.numel() != 1 and tuple(slope.shape[-len(wanted) :]) != wanted) or slope.numel() not in (
        1,
        x.shape[1],
    ):
        raise _refuse(given, "has slopes that are not one per channel")
    return F.prelu(x, slope.reshape(-1))


def _type_of(given: Mapping[str, Any]) -> torch.dtype:
    value = given.get("value")
    return value.dtype if isinstance(value, Tensor) else torch.float32


def _depth_to_space(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    if given.get("mode", "DCR") != "CRD":
        raise _refuse(given, "takes depth first")
    return F.pixel_shuffle(values[0], given["blocksize"])


def _split(values: Sequence[Any], given: Mapping[str, Any]) -> tuple[Tensor, ...]:
    x, axis = values[0], given.get("axis", 0)
    each = -(-x.shape[axis] // given[""])
    sizes = _ints(values[1]) if len(values) > 1 and values[1] is not None else each
    found = tuple(torch.split(x, sizes, axis))
    if len(found) != given[""]:
        raise _refuse(given, "makes parts without elements")
    return found


def _of_one(function: Callable[..., Any], **names: float) -> Rule:
    """A function of one tensor, and of attributes with defaults."""
    return lambda v, given: function(v[0], *(given.get(name, default) for name, default in names.items()))


def _of_two(function: Callable[[Any, Any], Any]) -> Rule:
    return lambda v, _: function(v[0], v[1])


def _softmax(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    function = torch.log_softmax if given["op"] == "LogSoftmax" else torch.softmax
    return function(values[0], given.get("axis", -1))


def _norm(values: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    x, weight, bias, *rest = [*values, None][: max(3, len(values))]
    eps = given.get("epsilon", 1e-5)
    if given.get("training_mode", 0):
        raise _refuse(given, "is of training")
    if given["op"] == "LayerNormalization":
        axis = given.get("axis", -1) % x.dim()
        return F.layer_norm(x, x.shape[axis:], weight, bias, eps)
    if given["op"] == "InstanceNormalization":
        return F.instance_norm(x, weight=weight, bias=bias, eps=eps)
    return F.batch_norm(x, rest[0], rest[1], weight, bias, eps=eps)


ONNX_RULES: Final[Mapping[str, Rule]] = {
    "Abs": _of_one(torch.abs),
    "Add": _of_two(torch.add),
    "ArgMax": _argmax,
    "AveragePool": _pool,
    "BatchNormalization": _norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda v, g: torch.cat(list(v), g["axis"]),
    "Constant": _constant,
    "ConstantOfShape": lambda v, g: torch.full(_ints(v[0]), _real(g.get("value", 0.0)), dtype=_type_of(g)),
    "Conv": _conv,
    "DepthToSpace": _depth_to_space,
    "Div": _of_two(_divided),
    "Dropout": _dropout,
    "Elu": _of_one(F.elu, alpha=1.0),
    "Erf": _of_one(torch.erf),
    "Exp": _of_one(torch.exp),
    "Expand": lambda v, _: v[0].expand(np.broadcast_shapes(v[0].shape, _ints(v[1]))),
    "Flatten": lambda v, g: v[0].reshape(prod(v[0].shape[: g.get("axis", 1)]), -1),
    "GRU": _recurrent,
    "Gather": _gather,
    "Gelu": lambda v, g: F.gelu(v[0], approximate=g.get("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda v, _: v[0].mean(tuple(range(2, v[0].dim())), keepdim=True),
    "GlobalMaxPool": lambda v, _: v[0].amax(tuple(range(2, v[0].dim())), keepdim=True),
    "HardSigmoid": lambda v, g: torch.clamp(v[0] * g.get("alpha", 0.2) + g.get("beta", 0.5), 0.0, 1.0),
    "HardSwish": _of_one(F.hardswish),
    "Identity": _of_one(lambda x: x),
    "InstanceNormalization": _norm,
    "LSTM": _recurrent,
    "LayerNormalization": _norm,
    "LeakyRelu": _of_one(F.leaky_relu, alpha=0.01),
    "Log": _of_one(torch.log),
    "LogSoftmax": _softmax,
    "MatMul": lambda v, _: F.linear(v[0], v[1].t()) if v[1].dim() == 2 else torch.matmul(v[0], v[1]),
    "Max": lambda v, _: reduce(torch.maximum, v),
    "MaxPool": _pool,
    "Min": lambda v, _: reduce(torch.minimum, v),
    "Mish": _of_one(F.mish),
    "Mul": _of_two(torch.mul),
    "Neg": _of_one(torch.neg),
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": lambda v, _: torch.pow(v[0], _real(v[1])),
    "RNN": _recurrent,
    "Reciprocal": _of_one(torch.reciprocal),
    "ReduceMax": _reduced("amax"),
    "ReduceMean": _reduced("mean"),
    "ReduceMin": _reduced("amin"),
    "ReduceSum": _reduced("sum"),
    "Relu": _of_one(F.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": lambda v, g: torch.tensor(v[0].shape)[g.get("start", 0) : g.get("end")],
    "Sigmoid": _of_one(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": _of_one(F.softplus),
    "Split": _split,
    "Sqrt": _of_one(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _of_two(torch.sub),
    "Tanh": _of_one(torch.tanh),
    "Transpose": lambda v, g: v[0].permute(g.get("perm") or tuple(reversed(range(v[0].dim())))),
    "Unsqueeze": _unsqueeze,
}
"""Op -> what computes it."""
