"""Integer-only kernels for microcontrollers, proved to stay in 32 bits for every input."""

from tightrope_micro.integer.emit import HEADER, emitted
from tightrope_micro.integer.evaluate import evaluate
from tightrope_micro.integer.kernels import gelu, layer_norm, softmax
from tightrope_micro.integer.program import RowKind, RowProgram, Value
from tightrope_micro.integer.proof import IntegerRange, proved

__all__ = [
    "HEADER",
    "IntegerRange",
    "RowKind",
    "RowProgram",
    "Value",
    "emitted",
    "evaluate",
    "gelu",
    "layer_norm",
    "proved",
    "softmax",
]
