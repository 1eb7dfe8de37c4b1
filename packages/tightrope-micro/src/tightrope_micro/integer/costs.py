"""Choose the kernel of a row op by what it costs on a core: polynomial, table or float.

Idea        Each form of each op was run under an emulator for rows of 1 to 64 elements, and its instructions
            counted. A longer row costs what a row costs that leaves as many elements over behind whole
            vectors, and so many instructions per element more. What costs least at a length is taken.
Source      counts by `python -m benchmarks micro --only K2 --fit`, of gcc 12.2
Guarantee   `python -m benchmarks micro --only K2` counts all forms again, at other lengths, and compares the
            one chosen with the best.
Complexity  Constant.
Gaps        Instructions, not cycles: a read of slow flash, a division and a vector instruction cost one each.
"""

from collections.abc import Collection
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from tightrope.core import TightropeError


class KernelForm(StrEnum):
    """How the kernel of an op computes."""

    POLYNOMIAL = "polynomial"  # integers without a table
    TABLE = "table"  # integers, looked up
    FLOAT = "float"  # numbers are converted, and back


class RowOp(StrEnum):
    """Ops that have more than one form."""

    SOFTMAX = "softmax"
    GELU = "gelu"
    LAYER_NORM = "layer_norm"


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Instructions of a row.

    Attributes:
        rows: of rows of 1, 2, ... `COUNTED` elements.
        element: more per element of longer rows.
    """

    rows: tuple[float, ...]
    element: float

    def of(self, length: int) -> float:
        """Instructions of a row of so many elements.

        >>> Cost(tuple(range(100, 164)), 2.0).of(64 + 32)
        227.0
        """
        over = max(0, -(-(length - COUNTED) // _LANES)) * _LANES
        return self.rows[length - over - 1] + self.element * over


CORES: Final = ("armv7-neon", "cortex-m4f", "cortex-m3", "x86-64-v3")
"""Cores whose costs are known."""
COUNTED: Final = 64
_LANES: Final = 32
"""Elements of the longest vector: rows that differ by a multiple of it leave as many elements over."""
Costs = dict[RowOp, dict[KernelForm, Cost]]
_CORE_OF: Final = {
    "nrf52840": "cortex-m4f", "poet-cortex-m4f": "cortex-m4f", "cortex-m4f-256k": "cortex-m4f",
    "stm32f746": "cortex-m4f", "stm32h743": "cortex-m4f",
}  # fmt: skip


def core_of(machine: str) -> str:
    """Core whose costs stand for a machine profile; empty where none does.

    >>> core_of("nrf52840"), core_of("laptop-16gb")
    ('cortex-m4f', '')
    """
    return _CORE_OF.get(machine, "")


def check_core(core: str) -> None:
    """Refuse a core whose costs are not known.

    Raises:
        TightropeError: names those that are.
    """
    if core not in CORES:
        raise TightropeError(
            f"no costs of kernels are known for core {core!r}. Choose {', '.join(CORES)}, or none, which "
            "takes polynomials for softmax and layer norm and tables for GELU."
        )


def chosen(core: str, op: RowOp, length: int, forms: Collection[KernelForm]) -> KernelForm:
    """Choose the form that takes fewest instructions.

    Args:
        core: one of `CORES`.
        op: whose kernel it is.
        length: elements of a row.
        forms: that there are.

    Raises:
        TightropeError: nothing is known of the core.

    Example:
        >>> chosen("cortex-m4f", RowOp.GELU, 64, tuple(KernelForm)).value
        'table'
    """
    check_core(core)
    costs = costs_of(core)[op]
    return min((one for one in KernelForm if one in forms), key=lambda form: costs[form].of(length))


@cache
def costs_of(core: str) -> Costs:
    """Read what the kernels of a core cost.

    Example:
        >>> round(costs_of("cortex-m4f")[RowOp.GELU][KernelForm.TABLE].element)
        4
    """
    text = (files("tightrope_micro") / "integer" / "counted" / f"{core}.json").read_bytes()
    return msgspec.json.decode(text, type=Costs)
