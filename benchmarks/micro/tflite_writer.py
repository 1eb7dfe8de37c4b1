"""Write int8 nets as .tflite files, by the numbers of the schema's fields alone.

It knows nothing of the plug-in's reader, and of no generated classes: tables are written field by field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TYPES: Final = {"float32": 0, "int32": 2, "uint8": 3, "int16": 7, "int8": 9}
CODES: Final = {
    "ADD": 0, "AVERAGE_POOL_2D": 1, "CONCATENATION": 2, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 4, "DEQUANTIZE": 6,
    "FULLY_CONNECTED": 9, "LOGISTIC": 14, "MAX_POOL_2D": 17, "MUL": 18, "RELU": 19, "RELU6": 21,
    "RESHAPE": 22, "SOFTMAX": 25, "PAD": 34, "MEAN": 40, "QUANTIZE": 114,
    "HARD_SWISH": 117, "TANH": 28,
}  # fmt: skip
_POOL: Final = (5, ("padding", "stride_w", "stride_h", "filter_w", "filter_h", "activation"))
_OPTIONS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "ADD": (11, ("activation",)),
    "AVERAGE_POOL_2D": _POOL,
    "CONCATENATION": (10, ("axis", "activation")),
    "CONV_2D": (1, ("padding", "stride_w", "stride_h", "activation", "dilation_w", "dilation_h")),
    "DEPTHWISE_CONV_2D": (
        2, ("padding", "stride_w", "stride_h", "multiplier", "activation", "dilation_w", "dilation_h"),
    ),
    "FULLY_CONNECTED": (8, ("activation", "format", "keep")),
    "MAX_POOL_2D": _POOL,
    "MEAN": (27, ("keep",)),
    "MUL": (21, ("activation",)),
    "SOFTMAX": (9, ("beta",)),
}  # fmt: skip
"""Op -> number of the table of its options, and its fields in order."""
_BYTES: Final = ("padding", "activation", "format", "keep")


@dataclass
class WrittenTensor:
    """A tensor: its units are one, or one per channel along an axis."""

    shape: tuple[int, ...]
    dtype: str
    scales: tuple[float, ...] = ()
    zero: int = 0
    axis: int = 0
    data: NDArray[Any] | None = None
    signature: tuple[int, ...] = ()


@dataclass
class WrittenNet:
    """A net while it is written.

    Attributes:
        tensors: by number.
        ops: kind, what it reads, what it makes, options.
        inputs: numbers of tensors.
        outputs: numbers of tensors.
    """

    tensors: list[WrittenTensor] = field(default_factory=list)
    ops: list[tuple[str, tuple[int, ...], int, dict[str, Any]]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(self, shape: Sequence[int], dtype: str = "int8", **more: Any) -> int:
        """Add a tensor."""
        self.tensors.append(WrittenTensor(tuple(int(n) for n in shape), dtype, **more))
        return len(self.tensors) - 1

    def constant(self, data: NDArray[Any], **more: Any) -> int:
        """Add numbers that the file has."""
        return self.tensor(data.shape, str(data.dtype), data=data, **more)

    def op(self, kind: str, reads: Sequence[int], makes: int, **options: Any) -> int:
        """Add an op; returns what it makes."""
        self.ops.append((kind, tuple(reads), makes, options))
        return makes

    def content(self, **wrong: Any) -> bytes:
        """The bytes of the file.

        Args:
            wrong: ``code``: number of an op to write for all, to see that it is refused.
        """
        import flatbuffers

        b: Any = flatbuffers.Builder(1024)
        buffers = [_table(b, {})]
        tensors = []
        for one in self.tensors:
            at = 0
            if one.data is not None:
                at = len(buffers)
                buffers.append(
                    _table(b, {0: b.CreateNumpyVector(np.frombuffer(one.data.tobytes(), np.uint8))})
                )
            units = {2: b.CreateNumpyVector(np.array(one.scales, np.float32))}
            units[3] = b.CreateNumpyVector(np.full(len(one.scales), one.zero, np.int64))
            fields = {
                0: _numbers(b, one.shape),
                4: _table(b, units if one.scales else {}, {6: ("Int32", one.axis)}),
            }
            if one.signature:
                fields[7] = _numbers(b, one.signature)
            tensors.append(_table(b, fields, {1: ("Int8", TYPES[one.dtype]), 2: ("Uint32", at)}))
        kinds = sorted({kind for kind, *_ in self.ops})
        codes = [wrong.get("code", CODES[kind]) for kind in kinds]
        ops = []
        for kind, reads, makes, options in self.ops:
            fields = {1: _numbers(b, reads), 2: _numbers(b, (makes,))}
            plain = {0: ("Uint32", kinds.index(kind))}
            if kind in _OPTIONS:
                number, names = _OPTIONS[kind]
                given = {k: (_kind(n), options[n]) for k, n in enumerate(names) if n in options}
                fields[4], plain[3] = _table(b, {}, given), ("Uint8", number)
            ops.append(_table(b, fields, plain))
        graph = {
            0: _tables(b, tensors),
            1: _numbers(b, self.inputs),
            2: _numbers(b, self.outputs),
            3: _tables(b, ops),
        }
        graphs = _tables(b, [_table(b, graph)])
        named = [_table(b, {}, {0: ("Int8", min(k, 127)), 2: ("Int32", 1), 3: ("Int32", k)}) for k in codes]
        model = {1: _tables(b, named), 2: graphs, 4: _tables(b, buffers)}
        b.Finish(_table(b, model, {0: ("Uint32", 3)}), file_identifier=b"TFL3")
        return bytes(b.Output())


def _kind(name: str) -> str:
    return "Int8" if name in _BYTES else "Float32" if name == "beta" else "Int32"


def _numbers(b: Any, values: Sequence[int]) -> int:
    return int(b.CreateNumpyVector(np.array(values, np.int32)))


def _tables(b: Any, places: Sequence[int]) -> int:
    b.StartVector(4, len(places), 4)
    for place in reversed(places):
        b.PrependUOffsetTRelative(place)
    return int(b.EndVector())


def _table(b: Any, fields: Mapping[int, int], plain: Mapping[int, tuple[str, Any]] | None = None) -> int:
    """Write a table: fields that lie elsewhere, and plain ones with their types, by number."""
    plain = plain or {}
    b.StartObject(max([*fields, *plain], default=-1) + 1)
    for number, place in fields.items():
        b.PrependUOffsetTRelativeSlot(number, place, 0)
    for number, (kind, value) in plain.items():
        getattr(b, f"Prepend{kind}Slot")(number, value, None)
    return int(b.EndObject())
