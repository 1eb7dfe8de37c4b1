"""Integer-only kernels for microcontrollers, proved to stay in 32 bits for every input."""

from tightrope.micro.integer.emit import HEADER, emitted
from tightrope.micro.integer.evaluate import evaluate
from tightrope.micro.integer.kernels import gelu, layer_norm, softmax
from tightrope.micro.integer.program import RowKind, RowProgram, Value
from tightrope.micro.integer.proof import IntegerRange, proved

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
