"""The files of inference beside the plan's: constants in flash, kernels made for the net."""

from collections.abc import Mapping, Sequence
from typing import Final

from tightrope_micro.integer.emit import HEADER, emitted
from tightrope_micro.integer.floats import FloatRows, float_section
from tightrope_micro.integer.forms import RowKernel

_BYTES_PER_LINE: Final = 24


def net_texts(constants: bytes, programs: Sequence[RowKernel]) -> Mapping[str, str]:
    """File name -> text, of constants in flash and kernels that were made for the net."""
    kernels = [
        f"void {one.name}(const {one.source} *x, {_written(one)} *y, uint32_t rows);" for one in programs
    ]
    pointers = [
        f"#define K{letter}(at) ((const {kind} *)(const void *)(tr_constants + (at)))"
        for letter, kind in (
            ("F", "float"), ("I", "int32_t"), ("B", "uint8_t"), ("C", "int8_t"), ("S", "int16_t"),
        )
    ]  # fmt: skip
    header = [
        "#include <stdint.h>", "", f"extern const unsigned char tr_constants[{max(len(constants), 1)}];",
        *pointers, *kernels, "",
    ]  # fmt: skip
    body = [HEADER if programs else "#include <stdint.h>\n", '#include "net.h"\n']
    whole = [emitted(one) for one in programs if not isinstance(one, FloatRows)]
    floats = float_section(one for one in programs if isinstance(one, FloatRows))
    return {
        "net.h": "\n".join(header),
        "net.c": "\n".join([*body, *whole, floats, _array(constants)]),
    }


def _written(kernel: RowKernel) -> str:
    return kernel.into if isinstance(kernel, FloatRows) else kernel.target


def _array(data: bytes) -> str:
    rows = [data[at : at + _BYTES_PER_LINE] for at in range(0, len(data), _BYTES_PER_LINE)]
    lines = [", ".join(map(str, row)) + "," for row in rows] or ["0,"]
    head = f"_Alignas(4) const unsigned char tr_constants[{max(len(data), 1)}] = {{"
    return "\n".join([head, *(f"    {line}" for line in lines), "};", ""])
