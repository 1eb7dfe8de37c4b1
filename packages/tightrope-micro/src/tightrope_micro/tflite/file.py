"""A file of TensorFlow Lite as plain values: tensors, ops with their options, what goes in and comes out.

Idea        The package ``tflite`` has the schema, and ``flatbuffers`` reads where it says. Lengths are
            compared with limits before anything is read, and nothing in the file is executed.
Source      schema.fbs of TensorFlow Lite, version 3
Guarantee   What is returned has whole shapes, tensors that exist, and as many bytes as its shapes say.
Complexity  Linear in the bytes of the file.
Gaps        The first graph of a file; weights that lie in it.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Bytes, TightropeError

_MOST: Final[Bytes] = 64 << 20
_MOST_PARTS: Final = 10_000
_MOST_DIMENSIONS: Final = 8
_MOST_ELEMENTS: Final = 1 << 28
_WRONG: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)
"""What the schema's classes raise for bytes that are not as it says."""
_WINDOW: Final = ("Padding", "StrideH", "StrideW", "FusedActivationFunction")
_DILATED: Final = (*_WINDOW, "DilationHFactor", "DilationWFactor")
_OPTIONS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ADD": ("AddOptions", ("FusedActivationFunction",)),
    "AVERAGE_POOL_2D": ("Pool2DOptions", (*_WINDOW, "FilterHeight", "FilterWidth")),
    "CONCATENATION": ("ConcatenationOptions", ("Axis", "FusedActivationFunction")),
    "CONV_2D": ("Conv2DOptions", _DILATED),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", _DILATED),
    "FULLY_CONNECTED": ("FullyConnectedOptions", ("FusedActivationFunction", "WeightsFormat")),
    "MAX_POOL_2D": ("Pool2DOptions", (*_WINDOW, "FilterHeight", "FilterWidth")),
    "MUL": ("MulOptions", ("FusedActivationFunction",)),
    "SOFTMAX": ("SoftmaxOptions", ("Beta",)),
}
"""Op -> the table of its options, and what is read of it; others need none."""


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor.

    Attributes:
        dtype: such as ``int8``.
        shape: whole numbers; a batch that is not fixed is 1.
        scales: a real number is one of them times the whole one less a zero; empty = not quantized.
        zeros: one per scale.
        axis: along which scales differ.
        data: of a constant; None = it is computed, or given.
        trouble: why it cannot be used; empty = it can.
    """

    dtype: str
    shape: tuple[int, ...]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int64]
    axis: int
    data: NDArray[Any] | None
    trouble: str = ""


@dataclass(frozen=True)
class TfliteOp:
    """An op.

    Attributes:
        kind: such as ``CONV_2D``.
        reads: numbers of tensors; -1 = left out.
        makes: numbers of tensors.
        options: by the names of the schema.
    """

    kind: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class TfliteFile:
    """The first graph of a file.

    Attributes:
        tensors: by number.
        ops: in order.
        inputs: numbers of tensors.
        outputs: numbers of tensors.
    """

    tensors: tuple[TfliteTensor, ...]
    ops: tuple[TfliteOp, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_tflite(path: Path) -> TfliteFile:
    """Read a file.

    Raises:
        TightropeError: a package is not there, or the file is no such file, is damaged or is too large.
    """
    try:
        import flatbuffers  # noqa: F401
        import tflite
    except ModuleNotFoundError as error:
        raise TightropeError(
            "nets of TensorFlow Lite need two packages: pip install 'tightrope-micro[tflite]'."
        ) from error
    if not path.is_file() or path.stat().st_size > _MOST:
        raise TightropeError(f"no net at {str(path)!r}: give a .tflite file of at most {_MOST >> 20} MiB.")
    content = path.read_bytes()
    if content[4:8] != b"TFL3":
        raise TightropeError(f"{str(path)!r} is no file of TensorFlow Lite. Convert the net anew.")
    try:
        return _read(tflite.Model.GetRootAs(content, 0), tflite)
    except _WRONG as error:
        words = " ".join(str(error).split())[:120]
        raise TightropeError(
            f"{str(path)!r} is damaged or cut off: {words}. Convert the net anew."
        ) from error


def _read(model: Any, schema: Any) -> TfliteFile:
    if not _count(model.SubgraphsLength()):
        raise ValueError("it has no graph")
    graph = model.Subgraphs(0)
    kinds = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    dtypes = {v: k.lower() for k, v in vars(schema.TensorType).items() if isinstance(v, int)}
    _count(model.BuffersLength())
    tensors = tuple(_tensor(graph.Tensors(k), model, dtypes) for k in range(_count(graph.TensorsLength())))
    codes = [_kind(model.OperatorCodes(k), kinds) for k in range(_count(model.OperatorCodesLength()))]
    ops = tuple(_op(graph.Operators(k), codes, schema) for k in range(_count(graph.OperatorsLength())))
    inputs, outputs = _whole(graph.InputsAsNumpy()), _whole(graph.OutputsAsNumpy())
    named = [*inputs, *outputs, *(k for op in ops for k in (*op.reads, *op.makes))]
    if not all(-1 <= k < len(tensors) for k in named) or -1 in (*inputs, *outputs):
        raise ValueError("an op names a tensor that there is not")
    return TfliteFile(tensors, ops, inputs, outputs)


def _count(number: int) -> int:
    if number > _MOST_PARTS:
        raise ValueError(f"it has {number} parts of a kind, more than {_MOST_PARTS}")
    return number


def _whole(array: Any) -> tuple[int, ...]:
    """Read a list of numbers, which the schema's classes give as 0 where it is left out."""
    return tuple(int(k) for k in array) if isinstance(array, np.ndarray) else ()


def _kind(code: Any, kinds: Mapping[int, str]) -> str:
    number = max(code.DeprecatedBuiltinCode(), code.BuiltinCode())
    return kinds.get(number, f"op {number}")


def _op(one: Any, codes: list[str], schema: Any) -> TfliteOp:
    kind = codes[one.OpcodeIndex()]
    options: dict[str, Any] = {}
    if kind in _OPTIONS:
        table, names = _OPTIONS[kind]
        given, found = one.BuiltinOptions(), getattr(schema, table)()
        if given is None or one.BuiltinOptionsType() != getattr(schema.BuiltinOptions, table):
            raise ValueError(f"{kind} has no {table}")
        found.Init(given.Bytes, given.Pos)
        options = {name: getattr(found, name)() for name in names}
    return TfliteOp(kind, _whole(one.InputsAsNumpy()), _whole(one.OutputsAsNumpy()), options)


def _tensor(one: Any, model: Any, dtypes: Mapping[int, str]) -> TfliteTensor:
    shape, signature = _whole(one.ShapeAsNumpy()), _whole(one.ShapeSignatureAsNumpy())
    dtype = dtypes.get(one.Type(), "of an unknown type")
    units = one.Quantization()
    scales = np.zeros(0, np.float32) if units is None else _array(units.ScaleAsNumpy(), np.float32)
    zeros = np.zeros(0, np.int64) if units is None else _array(units.ZeroPointAsNumpy(), np.int64)
    axis = 0 if units is None else units.QuantizedDimension()
    trouble = ""
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=1) < 1 or prod(shape) > _MOST_ELEMENTS:
        trouble = f"has the shape {list(shape)[:_MOST_DIMENSIONS]}"
    elif min(signature[1:], default=1) < 1:
        trouble = f"has sizes that are not fixed, {list(signature)}"
    elif one.Sparsity() is not None:
        trouble = "is sparse"
    elif one.IsVariable():
        trouble = "keeps its values from call to call"
    elif scales.size and not (np.isfinite(scales) & (scales > 0)).all():
        trouble = "has a unit that is no positive number"
    elif units is not None and units.DetailsType():
        trouble = "has units of another kind than numbers per channel"
    if zeros.size != scales.size:
        zeros = np.resize(zeros if zeros.size == 1 else np.zeros(1, np.int64), scales.size)
    buffer = model.Buffers(one.Buffer()) if one.Buffer() < model.BuffersLength() else None
    data = None if buffer is None or not buffer.DataLength() else buffer.DataAsNumpy()
    if data is not None and not trouble and dtype in ("int8", "uint8", "int32", "float32"):
        if data.size != prod(shape) * np.dtype(dtype).itemsize:
            raise ValueError(f"a tensor of {list(shape)} has {data.size} bytes")
        data = data.view(np.dtype(dtype).newbyteorder("<")).reshape(shape)
    elif data is not None:
        trouble = trouble or f"is {dtype}"
    return TfliteTensor(dtype, shape, scales, zeros, axis, data, trouble)


def _array(array: Any, dtype: Any) -> NDArray[Any]:
    """A list of numbers, which the schema's classes give as 0 where it is left out."""
    return np.array(array, dtype) if isinstance(array, np.ndarray) else np.zeros(0, dtype)
