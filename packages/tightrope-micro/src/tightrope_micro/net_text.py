"""The files of inference beside the plan's: constants in flash, kernels made for the net."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes
from tightrope_micro.integer.emit import HEADER, emitted
from tightrope_micro.integer.floats import FloatRows, float_section
from tightrope_micro.integer.forms import RowKernel

_BYTES_PER_LINE: Final = 24


@dataclass(frozen=True)
class NetText:
    """What inference needs beside its plan.

    Attributes:
        constants: bytes in flash.
        programs: kernels made for the net.
        returned: what the function returns, in words.
        header: lines for the header: formats, and how many bytes are returned.
        columns: bytes of the stack that a layer may take for the windows that it multiplies.
    """

    constants: bytes
    programs: Sequence[RowKernel]
    returned: str
    header: str
    columns: Bytes


def net_texts(net: NetText) -> Mapping[str, str]:
    """File name -> text."""
    kernels = [
        f"void {one.name}(const {one.source} *x, {_written(one)} *y, uint32_t rows);" for one in net.programs
    ]
    pointers = [
        f"#define K{letter}(at) ((const {kind} *)(const void *)(tr_constants + (at)))"
        for letter, kind in (
            ("F", "float"), ("I", "int32_t"), ("B", "uint8_t"), ("C", "int8_t"), ("S", "int16_t"),
        )
    ]  # fmt: skip
    header = [
        "#include <stdint.h>", "", f"extern const unsigned char tr_constants[{max(len(net.constants), 1)}];",
        *pointers, *kernels, "",
    ]  # fmt: skip
    body = [HEADER if net.programs else "#include <stdint.h>\n", '#include "net.h"\n']
    whole = [emitted(one) for one in net.programs if not isinstance(one, FloatRows)]
    floats = float_section(one for one in net.programs if isinstance(one, FloatRows))
    return {
        "net.h": "\n".join(header),
        "net.c": "\n".join([*body, *whole, floats, _array(net.constants)]),
    }


def _written(kernel: RowKernel) -> str:
    return kernel.into if isinstance(kernel, FloatRows) else kernel.target


def _array(data: bytes) -> str:
    rows = [data[at : at + _BYTES_PER_LINE] for at in range(0, len(data), _BYTES_PER_LINE)]
    lines = [", ".join(map(str, row)) + "," for row in rows] or ["0,"]
    head = f"_Alignas(4) const unsigned char tr_constants[{max(len(data), 1)}] = {{"
    return "\n".join([head, *(f"    {line}" for line in lines), "};", ""])
