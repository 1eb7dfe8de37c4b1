"""A forward in integers, and how its values are held."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tightrope.core import Graph, StorageId
from tightrope_micro.constants import Constants
from tightrope_micro.integer.costs import KernelForm
from tightrope_micro.integer.forms import RowKernel


class Format(NamedTuple):
    """How a value is held: a real number is ``scale`` times the whole one less ``zero``."""

    dtype: str
    scale: float
    zero: int = 0


@dataclass(frozen=True)
class IntegerNet:
    """A forward in integers.

    Attributes:
        graph: one part, of ops ``micro.q_...`` and of copies.
        constants: weights, multipliers and tables.
        programs: kernels that are written for this net: softmax, layer norms and GELUs without a table.
        inputs: formats of the inputs, in the order of the call.
        output: format of the result.
        formats: of every storage.
        forms: op with more than one form of kernel -> the form that it has.
    """

    graph: Graph
    constants: Constants
    programs: tuple[RowKernel, ...]
    inputs: tuple[Format, ...]
    output: Format
    formats: Mapping[StorageId, Format] = field(default_factory=dict)
    forms: Mapping[str, KernelForm] = field(default_factory=dict)
