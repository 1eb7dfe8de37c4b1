"""The graph of a net of TensorFlow Lite while it is written: what rules read and write."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Argument, Graph, Kind, Op, UnsupportedOpError, View
from tightrope_micro.constants import Constants
from tightrope_micro.integer.net import Format
from tightrope_micro.tflite.file import TfliteFile, TfliteOp, TfliteTensor
from tightrope_micro.tflite.rounding import half_away, multiplier_of, single
from tightrope_micro.translator import Translator, contiguous

WHOLE: Final = ("int8",)
_ENDS: Final = {1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""Fused activation -> where it begins and ends: ReLU, from -1 to 1, and ReLU6."""


class TfliteUnit(NamedTuple):
    """A real number is ``scale`` times the whole one less ``zero``."""

    scale: np.float32
    zero: int


class FoldedPad(NamedTuple):
    """Padding that a convolution computes itself.

    Attributes:
        source: tensor without it.
        top: rows above.
        left: columns to the left.
        height: rows with it.
        width: columns with it.
    """

    source: int
    top: int
    left: int
    height: int
    width: int


@dataclass
class TfliteWriter:
    """The graph while it is written.

    Attributes:
        file: what is read.
        name: of it.
        flash: constants so far.
        pads: tensor that an op of padding makes -> how the only op that reads it pads.
        known: tensor -> how it looks in the new graph.
        t: writes the ops.
    """

    file: TfliteFile
    name: str
    flash: Constants = field(default_factory=Constants)
    pads: dict[int, FoldedPad] = field(default_factory=dict)
    known: dict[int, View] = field(default_factory=dict)
    t: Translator = field(default_factory=lambda: Translator(Graph((), ()), {}, {}))

    def at(self, number: int, kind: str) -> None:
        """Say which op is written from here on."""
        self.t.here = Op(number, f"op_{number}", kind, module=f"op {number}")

    def give(self, position: int, number: int) -> None:
        """Add an input."""
        self.at(position, f"input {position}")
        one = self.tensor(number, ("int8", "uint8", "float32"))
        storage = self.t.held(f"input_{position}", one.dtype, one.shape, Kind.INPUT)
        self.known[number] = View(storage, one.dtype, one.shape, contiguous(one.shape), input=position)

    def tensor(self, number: int, dtypes: Sequence[str] = WHOLE) -> TfliteTensor:
        """Look at a tensor of one of some dtypes.

        Raises:
            UnsupportedOpError: it is of another, or cannot be used.
        """
        if number < 0:
            self.refuse("leaves out a tensor that it needs")
        one = self.file.tensors[number]
        if one.trouble:
            self.refuse(f"has a tensor that {one.trouble}")
        if one.dtype not in dtypes:
            self.refuse(
                f"has a tensor of {one.dtype} where {' or '.join(dtypes)} is expected",
                "Quantize all of the net to int8.",
            )
        return one

    def unit(self, number: int, dtypes: Sequence[str] = WHOLE) -> TfliteUnit:
        """Look at the unit of a tensor, one for all of it."""
        one = self.tensor(number, dtypes)
        if one.scales.size != 1:
            self.refuse(f"has a tensor with {one.scales.size} units where one is expected")
        zero, limits = int(one.zeros[0]), np.iinfo(one.dtype)
        if not limits.min <= zero <= limits.max:
            self.refuse(f"has a zero of {zero}, which is no {one.dtype}")
        return TfliteUnit(one.scales[0], zero)

    def view(self, number: int, dtypes: Sequence[str] = WHOLE) -> View:
        """Look at a tensor in the new graph: computed, given, or a constant in flash."""
        one = self.tensor(number, dtypes)
        if number in self.known:
            return self.known[number]
        if one.data is None:
            self.refuse("reads what no op before it makes")
        return self.flash.put(one.data)

    def constant(self, number: int, dtypes: Sequence[str]) -> NDArray[Any]:
        """Look at numbers that the file has."""
        one = self.tensor(number, dtypes)
        if number in self.known or one.data is None:
            self.refuse("computes what has to be a constant")
        return one.data

    def make(self, op: TfliteOp, target: str, arguments: Sequence[Argument], shape: Sequence[int]) -> None:
        """Write the kernel of an op.

        Args:
            op: with one result.
            target: kernel without its family.
            arguments: in its order.
            shape: that the op computes.

        Raises:
            UnsupportedOpError: the file says another shape, or no such dtype is there.
        """
        number = self.result(op)
        one = self.tensor(number, ("int8", "uint8", "float32"))
        if one.shape != tuple(shape):
            self.refuse(f"makes {list(shape)}, where the file says {list(one.shape)}")
        (self.known[number],) = self.t.emit(target, tuple(arguments), [(one.dtype, one.shape)])

    def result(self, op: TfliteOp) -> int:
        """The one tensor that an op makes."""
        if len(op.makes) != 1 or op.makes[0] < 0:
            self.refuse(f"makes {len(op.makes)} tensors")
        return op.makes[0]

    def rename(self, op: TfliteOp) -> None:
        """Say that an op's result is what it reads, with another shape."""
        dtypes = ("int8", "uint8", "float32")
        given, one = self.view(op.reads[0], dtypes), self.tensor(self.result(op), dtypes)
        if (
            np.prod(given.shape, dtype=np.int64) != np.prod(one.shape, dtype=np.int64)
            or given.dtype != one.dtype
        ):
            self.refuse(f"makes {list(one.shape)} of {list(given.shape)}")
        strides = contiguous(one.shape)
        self.known[op.makes[0]] = View(
            given.base, given.dtype, one.shape, strides, given.offset, input=given.input
        )

    def limits(self, op: TfliteOp) -> tuple[int, int]:
        """Smallest and largest number that an op's fused activation lets through."""
        kind = op.options.get("FusedActivationFunction", 0)
        if kind not in (0, *_ENDS):
            self.refuse(f"has a fused activation of number {kind}")
        unit = self.unit(self.result(op))
        low, high = _ENDS.get(kind, (None, None))
        return max(-128, self.whole(low, unit, -128)), min(127, self.whole(high, unit, 127))

    def whole(self, value: float | None, unit: TfliteUnit, otherwise: int) -> int:
        """A real number in a unit."""
        if value is None:
            return otherwise
        found = single(value / float(unit.scale))
        if abs(found) >= 2**31:
            self.refuse(f"has a unit of {unit.scale}, which is too small")
        return half_away(found) + unit.zero

    def scale(self, ratio: float) -> tuple[int, int]:
        """A ratio as a multiplier and a shift.

        Raises:
            UnsupportedOpError: it is too large.
        """
        if not ratio < 2**30:
            self.refuse(f"multiplies by {ratio:.3g}, which is too large")
        return multiplier_of(ratio)

    def format(self, number: int) -> Format:
        """How a tensor that goes in or comes out is held."""
        one = self.tensor(number, ("int8", "uint8", "float32"))
        if one.dtype == "float32":
            return Format("float32", 1.0)
        unit = self.unit(number, (one.dtype,))
        return Format(one.dtype, float(unit.scale), unit.zero)

    def refuse(self, why: str, way: str = "Convert the net without it.") -> NoReturn:
        """Refuse the op that is written.

        Raises:
            UnsupportedOpError: names it.
        """
        assert self.t.here is not None
        who = self.t.here.describe()
        raise UnsupportedOpError(f"{who} of {self.name!r} {why}. {way}", op=who)
